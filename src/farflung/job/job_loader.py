"""Builds a job from all its sources: flag > environment > file > sync method > preset > default.

Each value keeps its origin, so that a refusal can say whom to correct and `farflung plan --show-config` can say
where every value came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from farflung.core.errors import SpecError
from farflung.core.release import VERSION
from farflung.core.similar_name import similar_name
from farflung.job import toml_parser
from farflung.job.keys import DEADLINE, KEYS, SECTIONS, TERM_KEYS, JobKey, expected, value_of
from farflung.job.keys import keys as keys
from farflung.job.methods.registry import METHODS, check_loaded
from farflung.job.methods.sync_method import METHOD
from farflung.job.presets import PRESETS
from farflung.job.spec import JobSpec
from farflung.job.spec_checks import check

_NAMED, _COUNT = "audit.verifiers", "network.verifiers"
_BEGUN: Final = re.compile(r"# A job of farflung ([0-9A-Za-z.+!-]{1,32})\. ")  # what `farflung init` writes


class ResolvedJob(msgspec.Struct, frozen=True):
    """A checked job, and for each dotted key where its value came from.

    `deadline`: when it must be over, as somebody wrote it (local.jobs.deadline); "": nobody did.
    """

    spec: JobSpec
    origins: dict[str, str]
    deadline: str = ""

    def value_of(self, dotted: str) -> Any:
        """The value of a key."""
        return self.deadline if dotted == DEADLINE else value_of(self.spec, dotted)


class _SourceValue(NamedTuple):
    """One value as somebody gave it; `is_text`: it came as text and is read as the key's type."""

    key: str
    value: Any
    origin: str
    is_text: bool


def load(
    text: str | None,
    *,
    preset: str = "local",
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    origin_name: str = "job.toml",
) -> ResolvedJob:
    """The job that a file's text (or None), flags by dotted key and the environment ask for.

    Raises SpecError: FF-JOB-001 unknown key, FF-JOB-002 wrong type, FF-JOB-003 not TOML, FF-JOB-004 impossible
    value, FF-JOB-005 unknown preset.
    """
    values: dict[str, Any] = {name: key.default for name, key in KEYS.items()}
    origins = dict.fromkeys(KEYS, "default")
    said = [*_from_file(text, origin_name + _version(text or "")), *_from_environment(environment or {})]
    said += [_SourceValue(key, value, f"flag {key}", True) for key, value in sorted((flags or {}).items())]
    for one in [*_from_preset(preset), *_from_method(said), *said]:
        values[one.key] = _typed(_known(one), one)
        origins[one.key] = one.origin
    if values[_NAMED] and origins[_COUNT].startswith(("default", "preset")):
        values[_COUNT], origins[_COUNT] = len(values[_NAMED]), f"as many as {_NAMED} names"
    spec = build(values)
    check(spec, origins)
    return ResolvedJob(spec, origins, values[DEADLINE])


def _version(text: str) -> str:
    """What to add to the name of a file that `farflung init` of another version began; an unknown key says so then."""
    begun = _BEGUN.match(text)
    if begun is None or begun[1] == VERSION:
        return ""
    return f" (begun by farflung {begun[1]}; this is farflung {VERSION})"


def build(values: Mapping[str, Any]) -> JobSpec:
    """The spec with these values by dotted key; keys that are not named have their defaults. Not checked."""
    parts: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in SECTIONS}}
    for dotted in TERM_KEYS:
        if dotted in values:
            parts[KEYS[dotted].section][KEYS[dotted].name] = values[dotted]
    sections = {name: kind(**parts[name]) for name, kind in SECTIONS.items()}
    return JobSpec(**parts[""], **sections)  # type: ignore[arg-type]


def _from_preset(preset: str) -> Iterator[_SourceValue]:
    if preset not in PRESETS:
        guess = similar_name(preset, PRESETS)
        raise SpecError(
            "FF-JOB-005",
            f'unknown preset "{preset[:60]}"',
            cause="presets: " + ", ".join(PRESETS),
            hint=f'did you mean "{guess}"?' if guess else "choose one of them",
        )
    return (
        _SourceValue(e.key, e.value, f"preset {preset}", False)
        for e in toml_parser.read(PRESETS[preset], f"preset {preset}")
    )


def _from_method(said: Iterable[_SourceValue]) -> Iterator[_SourceValue]:
    """What the sync method that a person named sets; an unknown one is refused when its own turn comes.

    Raises SpecError FF-JOB-046.
    """
    named = [one.value for one in said if one.key == METHOD]
    if named:
        check_loaded(str(named[-1]))
    method = METHODS.get(str(named[-1])) if named else None
    for key, value in method.defaults.items() if method else ():
        yield _SourceValue(key, value, f'default of {METHOD} = "{named[-1]}"', False)


def _from_file(text: str | None, name: str) -> Iterator[_SourceValue]:
    for entry in toml_parser.read(text, name) if text is not None else ():
        yield _SourceValue(entry.key, entry.value, f"{name} line {entry.line}" if entry.line else name, False)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_SourceValue]:
    """FARFLUNG_ROUNDS, FARFLUNG_SYNC_STEPS, ...; a variable that begins like a section must name a key."""
    named = {key.variable: dotted for dotted, key in KEYS.items()}
    heads = tuple(f"FARFLUNG_{section.upper()}_" for section in SECTIONS)
    for variable, value in sorted(environment.items()):
        if variable in named:
            yield _SourceValue(named[variable], value, variable, True)
        elif (guess := _meant(variable, named)) or variable.startswith(heads):
            raise SpecError(
                "FF-JOB-001",
                f"unknown variable {variable[:80]}",
                cause="FARFLUNG_KEY and FARFLUNG_SECTION_KEY must name keys of a job",
                hint=f"did you mean {guess}?" if guess else "unset it",
            )


def _meant(variable: str, named: Iterable[str]) -> str:
    """The variable of ours that was probably meant, or ''. What all begin with alike is no likeness."""
    head = "FARFLUNG_"
    if not variable.startswith(head):
        return ""
    ours = [name.removeprefix(head) for name in named]
    found = similar_name(variable.removeprefix(head), ours)
    return head + found if found else ""


def _known(said: _SourceValue) -> JobKey:
    if said.key in KEYS:
        return KEYS[said.key]
    if said.key in SECTIONS:
        raise _wrong_type(said, f"{said.key} is a section", f"write [{said.key}], and its keys below it")
    section, dot, name = said.key.partition(".")
    if not dot or said.key.startswith('"'):
        section, name = (said.key, "") if isinstance(said.value, dict) else ("", said.key)
    if section and section not in SECTIONS:
        message, guess = f"unknown section [{section[:60]}]", similar_name(section, SECTIONS)
        guess = f"[{guess}]" if guess else ""
    else:
        place = f"in [{section}]" if section else "at the top level"
        message, guess = f'unknown key "{name[:60]}" {place}', _nearest_key(section, name)
    raise SpecError(
        "FF-JOB-001",
        message,
        cause=said.origin,
        hint=f"did you mean {guess}?" if guess else "`farflung plan --show-config` lists all keys",
    )


def _nearest_key(section: str, name: str) -> str:
    """The key that was meant: the same name elsewhere, then a similar one among its neighbours, then any similar."""
    neighbours = [key.name for key in KEYS.values() if key.section == section]
    elsewhere = {key.name: key for key in reversed(list(KEYS.values()))}
    if name not in elsewhere and (guess := similar_name(name, neighbours)):
        return f'"{guess}"'
    guess = similar_name(name, elsewhere)
    if not guess:
        return ""
    home = elsewhere[guess].section
    return f'"{guess}" in [{home}]' if home else f'"{guess}" at the top level, above all sections'


def _typed(key: JobKey, said: _SourceValue) -> Any:
    is_list = get_origin(key.kind) is tuple
    value = [each for each in said.value.split(",") if each] if is_list and said.is_text else said.value
    try:
        found = msgspec.convert(value, key.kind, strict=not said.is_text)
        return tuple(each.strip().lower() for each in found) if is_list else found
    except (msgspec.ValidationError, OverflowError):
        shown = str(said.value)[:60]
        wanted = expected(key.kind)
        words = [choice for choice in get_args(key.kind) if isinstance(choice, str)]
        guess = similar_name(shown, words)
        hint = f'did you mean "{guess}"?' if guess else f"give {key.dotted} {wanted}"
        if key.kind is str:
            hint = f'put it in quotes: {key.name} = "{shown}"'
        raise _wrong_type(said, f"{key.dotted} must be {wanted}, not {shown}", hint) from None


def _wrong_type(said: _SourceValue, message: str, hint: str) -> SpecError:
    return SpecError("FF-JOB-002", message, cause=said.origin, hint=hint)  # a value of another type
