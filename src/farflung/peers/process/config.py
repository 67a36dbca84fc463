"""Reads and writes a role's configuration: a TOML or JSON file, decoded strictly.

It names other files from its own folder.

    type          in the file
    SigningKey    the file of an account's key (peers.keys.files)
    KeyFile       a file of an account's key, or of a node key
    GenesisFile   a file
    Path          a path
    HexId         hex
    Money         pico-credits as an integer, or credits as a text: "0.002"; no float, which loses digits
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NoReturn, TypeVar

import msgspec

from farflung.core import bounded_toml, limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import ID_BYTES
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import read_bounded
from farflung.core.money import MAX_CREDITS, parse_credits
from farflung.core.release import VERSION
from farflung.core.similar_name import similar_name
from farflung.ledger import genesis_file
from farflung.net.certificates import Credential
from farflung.peers.keys.files import read_account, read_own

Port = Annotated[int, msgspec.Meta(ge=0, le=(1 << 16) - 1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
_IS_MONEY: Final = {"is": "money"}
Money = Annotated[int, msgspec.Meta(ge=0, le=MAX_CREDITS, extra=_IS_MONEY)]
RelayPrice = Annotated[int, msgspec.Meta(ge=0, le=limits.RELAY_PRICE, extra=_IS_MONEY)]  # a GiB
ConfigT = TypeVar("ConfigT", bound="RoleConfig")
_INITIAL: Final = re.compile(r"\$\.(\w+)")


class HexId(bytes):
    """A public key."""


class GenesisFile:
    """What a ledger begins with."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError."""
        try:
            self.genesis = genesis_file.read(data)
        except FarflungError as error:
            raise ValueError(str(error)) from error


class KeyFile:
    """What a process proves, and the file that it may be replaced in."""

    def __init__(self, credential: Credential, path: Path) -> None:
        self.credential, self.path = credential, path


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a relay or a validator listens."""

    peer: HexId
    host: str
    port: Port


class LedgerConfig(ListenerConfig, frozen=True):
    """A validator of a ledger, and others of the same."""

    others: tuple[ListenerConfig, ...] = ()


class RoleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each role is told; `FILES`: names that files have where a configuration file does not say."""

    FILES: ClassVar[Mapping[str, str]] = {}


def write_role_config(path: Path, values: Mapping[str, Any]) -> Path:
    """Writes a TOML file of plain values, structs of this module and lists of them. Raises RunError FF-CORE-050."""
    table = msgspec.to_builtins(values, enc_hook=_text)
    text = "\n".join([f"# written by farflung {VERSION}", *_toml(table)]) + "\n"
    write_atomic(path, text.encode(), "role.config")
    return path


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _toml(table: Mapping[str, Any], within: str = "") -> list[str]:
    """Plain values first, then the tables."""
    lines, below = [], []
    for name, value in table.items():
        if isinstance(value, Mapping):
            below += [f"[{within}{name}]", *_toml(value, f"{within}{name}.")]
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for each in value:
                below += [f"[[{within}{name}]]", *_toml(each, f"{within}{name}.")]
        elif value is not None:
            # JSON's values are TOML's, but for characters outside the first plane and the last one of ASCII
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f"))
    return lines + below


def read_role_config(path: Path, kind: type[ConfigT]) -> ConfigT:
    """A file's. Raises UsageError FF-APP-300, and what key files raise."""
    try:
        data = read_bounded(path, limits.TX_BYTES)
        table = _in_json(data) if path.suffix == ".json" else bounded_toml.parse(data.decode(), limits.TX_BYTES)
    except (OSError, ValueError) as error:
        refuse_config(str(path), (getattr(error, "strerror", None) or str(error))[:200])
    if not isinstance(table, dict):
        refuse_config(str(path), "it is no table of names and values")
    return _converted({**kind.FILES, **table}, kind, str(path), path.parent)


def _in_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def refuse_config(origin: str, cause: str) -> NoReturn:
    """Raises UsageError FF-APP-300."""
    raise UsageError(
        "FF-APP-300",
        f"{origin} cannot be used",
        cause=cause,
        hint="farflung ledger init FOLDER writes files that can; docs/operate/ledger.md explains each value",
    )


def _converted(table: Mapping[str, Any], kind: type[ConfigT], origin: str, folder: Path) -> ConfigT:
    for name in table:
        if name not in kind.__struct_fields__:
            near = similar_name(name, kind.__struct_fields__)
            refuse_config(origin, f"it sets {name!r}" + (f"; did you mean {near!r}?" if near else ""))
    try:
        counted = _in_pico_credits(table, msgspec.inspect.type_info(kind))
        return msgspec.convert(counted, kind, dec_hook=partial(_decoded, folder))
    except msgspec.ValidationError as error:
        named = _INITIAL.search(str(error))
        value = table.get(named[1]) if named is not None else None
        if named is not None and isinstance(value, str | int | float):
            refuse_config(origin, f"{named[1]} is {value!r} ({str(error)[:200]})")
        refuse_config(origin, str(error)[:200])  # it names types and keys, and no secret


def _in_pico_credits(value: Any, kind: msgspec.inspect.Type) -> Any:
    """The same with all amounts of money as integers. Raises msgspec.ValidationError as for any other wrong value."""
    match kind:
        case msgspec.inspect.Metadata(type=inner, extra=extra):
            return _amount(value) if extra == _IS_MONEY else _in_pico_credits(value, inner)
        case msgspec.inspect.UnionType(types=several):
            kinds = [each for each in several if not isinstance(each, msgspec.inspect.NoneType)]
            return _in_pico_credits(value, kinds[0]) if len(kinds) == 1 else value
        case msgspec.inspect.VarTupleType(item_type=inner) if isinstance(value, list | tuple):
            return [_in_pico_credits(each, inner) for each in value]
        case msgspec.inspect.DictType(value_type=inner) if isinstance(value, Mapping):
            return {name: _in_pico_credits(each, inner) for name, each in value.items()}
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, Mapping):
            kinds_of = {field.encode_name: field.type for field in fields}
            return {
                name: _in_pico_credits(each, kinds_of[name]) if name in kinds_of else each
                for name, each in value.items()
            }
    return value


def _amount(value: Any) -> Any:
    """Pico-credits. Raises msgspec.ValidationError for what is no exact amount."""
    if isinstance(value, float):
        raise msgspec.ValidationError(f'{value!r} is not exact: write credits as a text, like "0.002"')
    try:
        return parse_credits(value) if isinstance(value, str) else value
    except FarflungError as error:
        raise msgspec.ValidationError(f"{error.message}: {error.cause}") from error


def _decoded(folder: Path, kind: type[Any], text: Any) -> Any:
    """One value. Raises ValueError, and what key files raise."""
    if not isinstance(text, str):
        raise ValueError(f"expected a text, got {type(text).__name__}")
    if kind is HexId:
        return _key(text)
    path = folder / text
    if kind is SigningKey:
        return read_account(path)
    if kind is KeyFile:
        return KeyFile(read_own(path), path)
    try:
        return GenesisFile(read_bounded(path, genesis_file.BYTES)) if kind is GenesisFile else path
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def _key(text: str) -> HexId:
    found = HexId(bytes.fromhex(text))
    if len(found) != ID_BYTES:
        raise ValueError(f"a key has {2 * ID_BYTES} hex digits")
    return found
