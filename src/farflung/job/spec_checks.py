"""Checks the values of a job: the range of each key, and the rules between keys.

Used on what a person writes (with the origin of each value) and on specs that come from elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.errors import PolicyError, SpecError, UsageError
from farflung.core.money import CREDIT, MAX_CREDITS, format_credits, parse_credits
from farflung.job import proof_class
from farflung.job.gpt_shapes import gpt_size
from farflung.job.keys import value_of
from farflung.job.methods.registry import method_of
from farflung.job.methods.sync_method import METHOD
from farflung.job.spec import JobSpec
from farflung.ledger.canaries import SEGMENTS_LEAST

Origins = Mapping[str, str]

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODULE: Final = re.compile(r"(.+):([A-Za-z_][A-Za-z0-9_]*)")
_PATH_LENGTH: Final = 4096
LEVELS: Final = (1, 2)  # bits of values whose level is fp16
LEAST_LEVEL: Final = 2.0**-25  # what is not above it is rounded to a level of zero
SLACK: Final = 16
SQUARES: Final = (256, 1024, 4096)  # chunks that a two-dimensional transform takes


class ValueRange(NamedTuple):
    """Allowed values of one number. `above` and `below`: the ends themselves are excluded."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Whether a finite `value` lies inside."""
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        return math.isfinite(value) and low and high

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.above else f"at least {self.low}"
        if math.isinf(self.high):
            return f"{low} and finite"
        return f"{low} and " + (f"below {self.high:g}" if self.below else f"at most {self.high}")


_POSITIVE: Final = ValueRange(0, math.inf, above=True)
_SHARE: Final = ValueRange(0, 1, below=True)

RANGES: Final[Mapping[str, ValueRange]] = {
    "seed": ValueRange(0, (1 << 63) - 1),
    "rounds": ValueRange(1, limits.ROUNDS),
    "batch": ValueRange(1, limits.WEIGHT),
    "accumulate": ValueRange(1, limits.WEIGHT),
    "model.layers": ValueRange(1, 1024),
    "model.width": ValueRange(1, 1 << 16),
    "model.heads": ValueRange(1, 1024),
    "model.context": ValueRange(2, limits.WEIGHT),
    "model.vocabulary": ValueRange(2, 1 << 20),
    "data.limit": ValueRange(0, limits.TEXT_BYTES),
    "data.heldout": ValueRange(0, 0.5, above=True),
    "optimizer.lr": _POSITIVE,
    "optimizer.beta1": _SHARE,
    "optimizer.beta2": _SHARE,
    "optimizer.eps": _POSITIVE,
    "optimizer.weight_decay": ValueRange(0, math.inf),
    "optimizer.momentum": _SHARE,
    "optimizer.clip": ValueRange(0, math.inf),
    "schedule.warmup": ValueRange(0, 1 << 40),
    "schedule.final": ValueRange(0, 1),
    "schedule.begin": ValueRange(0, 1 << 40),
    "sync.steps": ValueRange(1, limits.WEIGHT),
    "sync.topk": ValueRange(1, 1 << 16),
    "sync.chunk": ValueRange(2, 1 << 16),
    "sync.rank": ValueRange(1, 1024),
    "sync.error_decay": ValueRange(0, 1),
    "sync.outer_lr": _POSITIVE,
    "sync.outer_momentum": _SHARE,
    "sync.warmup_rounds": ValueRange(0, limits.ROUNDS),
    "sync.fragments": ValueRange(1, limits.TENSORS),
    "sync.delay": ValueRange(0, 1),
    "network.providers": ValueRange(2, 64),
    "network.verifiers": ValueRange(0, 16),
    "network.hidden": ValueRange(0, 64),
    "network.port": ValueRange(0, 65535),
    "audit.segments": ValueRange(1, limits.SEGMENTS),
    "audit.rate": ValueRange(0, 1),
    "audit.probation": ValueRange(0, limits.ROUNDS),
    "audit.speed": ValueRange(0, 100),
    "audit.canaries": ValueRange(0, 0.5),
    "audit.jackpot": ValueRange(0, 100),
    "audit.probe": ValueRange(0, limits.WEIGHT),
    "churn.quorum": ValueRange(0.5, 1),
    "churn.grace": ValueRange(0, 100),
    "churn.exchange": _SHARE,
    "evaluate.every": ValueRange(1, limits.ROUNDS),
    "evaluate.tokens": ValueRange(2, 1 << 40),
    "evaluate.final_tokens": ValueRange(2, 1 << 40),
    "evaluate.stop_loss": ValueRange(0, 1 << 20),
}


def check(spec: JobSpec, origins: Origins | None = None) -> None:
    """Raises SpecError FF-JOB-004 that names the key, its value, what is allowed and where it came from."""
    told = origins or {}
    for key, allowed in RANGES.items():
        if not allowed.holds(value_of(spec, key)):
            raise _refused(spec, told, key, str(allowed))
    for key in ("budget", "unit_price"):
        _check_credits(spec, told, key)
    _check_texts(spec, told)
    if spec.batch % spec.accumulate:
        raise _refused(
            spec, told, "accumulate", f"a divisor of batch = {spec.batch}", "its passes have as many rows each"
        )
    _check_model(spec, told)
    _check_sync(spec, told)
    if spec.is_audited and not spec.network.verifiers:
        hint = "set network.verifiers = 1, or audit.rate = 0 and audit.probation = 0"
        raise _refused(spec, told, "network.verifiers", "at least 1 while work is audited", hint)
    _check_verifiers(spec, told)
    _check_canaries(spec, told)
    _check_proof(spec, told)
    _check_speed(spec, told)
    for key in ("evaluate.tokens", "evaluate.final_tokens"):
        if value_of(spec, key) < spec.model.context:
            raise _refused(spec, told, key, f"at least model.context = {spec.model.context}")
    if 0 < spec.evaluate.stop_loss <= 1:
        raise _refused(spec, told, "evaluate.stop_loss", "0 (the run never stops for its loss), or above 1")


def _refused(spec: JobSpec, origins: Origins, key: str, allowed: str, hint: str = "") -> SpecError:
    value = value_of(spec, key)
    shown = f'"{value[:60]}"' if isinstance(value, str) else f"{value}"
    if isinstance(value, tuple):
        shown = "[" + ", ".join(f'"{each[:8]}"' for each in value[:4]) + ", ..." * (len(value) > 4) + "]"
    origin = origins.get(key, "")
    return SpecError(
        "FF-JOB-004",
        f"{key} = {shown} is not possible",
        cause=f"allowed: {allowed}" + (f"; set by {origin}" if origin else ""),
        hint=hint or f"give {key} another value",
    )


def _check_credits(spec: JobSpec, origins: Origins, key: str) -> None:
    allowed = f"above 0, {MAX_CREDITS // CREDIT} credits at most, with at most 12 decimal places"
    try:
        amount = parse_credits(value_of(spec, key))
    except (UsageError, PolicyError):
        amount = None
    if not amount:
        raise _refused(spec, origins, key, allowed, f'write it like {key} = "2.5"')


def _check_verifiers(spec: JobSpec, origins: Origins) -> None:
    """Whether the nodes that alone may check the work are named by keys, each once, as many as are hired."""
    named, key = spec.audit.verifiers, "audit.verifiers"
    if not named:
        return
    if not spec.is_audited:
        raise _refused(spec, origins, key, "no keys while nothing is audited", "audit some work, or leave it out")
    if wrong := next((each for each in named if not _KEY.fullmatch(each)), None):
        allowed = f'keys of nodes, each 64 hexadecimal digits; "{wrong[:70]}" is none'
        raise _refused(spec, origins, key, allowed, "`farflung network nodes` and `farflung lend` print keys")
    if twice := next((each for each in named if named.count(each) > 1), None):
        raise _refused(spec, origins, key, f"each key once; {twice[:8]} is named twice", "name another, or fewer")
    if len(named) != spec.network.verifiers:
        hint = f"set network.verifiers = {len(named)}, or leave it out"
        raise _refused(spec, origins, key, f"network.verifiers = {spec.network.verifiers} keys, not {len(named)}", hint)


def _check_canaries(spec: JobSpec, origins: Origins) -> None:
    """A false end is another border of the same round, and not one that a verifier is shown."""
    if spec.audit.canaries and not spec.is_audited:
        hint = "audit some of the work, or leave canaries out"
        raise _refused(spec, origins, "audit.canaries", "0 while nothing is audited", hint)
    if spec.audit.canaries and spec.audit.verifiers:
        hint = "leave canaries out: they test verifiers that have something at stake"
        raise _refused(spec, origins, "audit.canaries", "0 where audit.verifiers names who checks", hint)
    if spec.audit.canaries and spec.segments < SEGMENTS_LEAST:
        allowed = f"0 where a round has fewer than {SEGMENTS_LEAST} segments"
        hint = f"set audit.segments = {SEGMENTS_LEAST} or more, and sync.steps as many at least"
        raise _refused(spec, origins, "audit.canaries", allowed, hint)


def _check_proof(spec: JobSpec, origins: Origins) -> None:
    """What is known of the job's class (job.proof_class) before its model is traced."""
    if spec.audit.proof == "proven" and not spec.is_audited:
        hint = "audit some of the work, or leave proof out"
        raise _refused(spec, origins, "audit.proof", '"auto" or "outcome" while nothing is audited', hint)
    if spec.audit.proof == "proven" and (why := proof_class.known(spec)):
        raise _refused(spec, origins, "audit.proof", f'"auto" or "outcome", as {why}')
    if proof_class.known(spec) and parse_credits(spec.unit_price) > proof_class.OUTCOME_PRICE:
        allowed = f'at most "{format_credits(proof_class.OUTCOME_PRICE)}" for work that is {proof_class.UNPROVEN}'
        raise _refused(spec, origins, "unit_price", allowed)


def _check_speed(spec: JobSpec, origins: Origins) -> None:
    """Whether claimed speed can be judged, where it is asked for (verify.speed_check)."""
    if not spec.audit.speed:
        return
    rules = (
        (spec.is_audited, "0 while nothing is audited"),
        (spec.audit.speed >= 1, "0, or at least 1: nobody is suspicious at the speed of its benchmark"),
        (spec.model.kind == "gpt", '0 unless model.kind = "gpt": what a token of another model costs is unknown'),
        (not spec.sync.delay, "0 with sync.delay = 1: rounds are trained before the clock begins"),
    )
    for is_kept, allowed in rules:
        if not is_kept:
            raise _refused(spec, origins, "audit.speed", allowed, "leave speed out of [audit]")


def _check_texts(spec: JobSpec, origins: Origins) -> None:
    if not _NAME.fullmatch(spec.name):
        raise _refused(spec, origins, "name", "1 to 64 letters, digits, dots, dashes, underscores; no dot first")
    path = spec.data.path
    if not (0 < len(path) <= _PATH_LENGTH and path.isprintable()):
        raise _refused(spec, origins, "data.path", "`stdlib` or a path of printable characters")
    start = spec.model.start
    if not (len(start) <= _PATH_LENGTH and start.isprintable()):
        raise _refused(spec, origins, "model.start", "a run's name, or a path of printable characters")


def _check_model(spec: JobSpec, origins: Origins) -> None:
    model = spec.model
    if model.kind == "module":
        if not (_MODULE.fullmatch(model.module) and model.module.isprintable()):
            raise _refused(spec, origins, "model.module", "a file and a function, like model.py:build")
        return
    if model.module:
        hint = 'set kind = "module" in [model], or remove module'
        raise _refused(spec, origins, "model.module", 'nothing while model.kind is "gpt"', hint)
    both = "give model.heads or model.width another value"
    if model.width % model.heads:
        raise _refused(spec, origins, "model.heads", f"a divisor of model.width = {model.width}", both)
    if gpt_size(model) > limits.ELEMENTS:
        allowed = f"at most {limits.ELEMENTS} parameters, not {gpt_size(model)}"
        raise _refused(spec, origins, "model.width", allowed, "make the model smaller")


def _check_sync(spec: JobSpec, origins: Origins) -> None:
    sync = spec.sync
    if sync.topk > sync.chunk:
        raise _refused(spec, origins, "sync.topk", f"at most sync.chunk = {sync.chunk}", "lower topk, or raise chunk")
    _check_method(spec, origins)
    _check_tokens(spec, origins)
    _check_rate(spec, origins)


def _check_tokens(spec: JobSpec, origins: Origins) -> None:
    """A contribution weighs its tokens, and a merge holds weights up to limits.WEIGHT."""
    if spec.round_tokens <= limits.WEIGHT:
        return
    allowed = f"batch * model.context * sync.steps = {spec.round_tokens} at most {limits.WEIGHT} tokens"
    if spec.step_tokens > limits.WEIGHT:
        most = limits.WEIGHT // (spec.model.context * spec.sync.steps)
        batch = f"batch = {most}" if most else f"batch = 1, sync.steps = {limits.WEIGHT // spec.model.context}"
        raise _refused(spec, origins, "batch", allowed, f"set {batch} or less, or a shorter model.context")
    most = limits.WEIGHT // spec.step_tokens
    raise _refused(spec, origins, "sync.steps", allowed, f"set sync.steps = {most} or less, and more rounds")


def _check_rate(spec: JobSpec, origins: Origins) -> None:
    """Whether values of one or two bits can say what the largest rate changes, with all that waits unsent.

    A step of AdamW or Muon moves an element by the rate, or a few times as much.
    """
    sync, rate = spec.sync, spec.optimizer.lr
    if sync.value_bits not in LEVELS or sync.error_decay == 1 or spec.optimizer.name not in ("adamw", "muon"):
        return
    least = LEAST_LEVEL * (1 - sync.error_decay) / (SLACK * sync.steps)
    if rate < least:
        allowed = f"at least {least:.1g} with sync.value_bits = {sync.value_bits} and sync.steps = {sync.steps}"
        raise _refused(spec, origins, "optimizer.lr", allowed, "set sync.value_bits = 8, whose values have any size")


def _check_method(spec: JobSpec, origins: Origins) -> None:
    """Whether the parts are those that the method is made of (job.methods)."""
    sync = spec.sync
    method, place = method_of(sync.method), f'with {METHOD} = "{sync.method}"'
    parts = {"optimizer.name": method.optimizers, "sync.codec": method.codecs, "sync.outer": method.outers}
    for key, possible in parts.items():
        if value_of(spec, key) not in possible:
            allowed = " or ".join(f'"{one}"' for one in possible) + f" {place}"
            name = key.partition(".")[2]
            hint = f'set {name} = "{possible[0]}" in [{key.partition(".")[0]}], or leave it out'
            raise _refused(spec, origins, key, allowed, hint)
    if method.is_stepwise and sync.steps != 1:
        hint = "set sync.steps = 1: it agrees after every step"
        raise _refused(spec, origins, "sync.steps", f"1 {place}", hint)
    for one in method.fixed:
        if value_of(spec, one.key) != one.value:
            raise _refused(spec, origins, one.key, f"{one.value} {place}", one.hint)
    if sync.transform != "raw" and (sync.codec != "topk" or sync.chunk not in SQUARES):
        allowed = f'"raw" unless sync.codec = "topk" and sync.chunk is one of {", ".join(map(str, SQUARES))}'
        raise _refused(spec, origins, "sync.transform", allowed, "set sync.chunk = 4096")
