"""Converts the ledger's structs to readable JSON and gives the JSON schema of that form, both from the structs.

Ids are lower-case hex, enumerations their names in lower case, money whole pico-credits, with `NAME_credits` beside it
as decimal text. A member of a union says in `kind` which one it is. What is proved is never this form but the
canonical bytes, which every answer carries as base64.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import inspect

from farflung.core.money import format_credits

# Fields that hold pico-credits, in every struct of the ledger.
MONEY: Final = frozenset(
    {
        "amount",
        "balance",
        "burnt",
        "escrow",
        "fee",
        "fee_min",
        "free",
        "held",
        "locked",
        "paid",
        "price",
        "refunded",
        "reserved",
        "slashed",
        "stake",
        "stake_min",
        "unit_price",
        "unit_price_max",
        "validator_stake_min",
    }
)
HEX: Final = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
DECIMAL: Final = {"type": "string", "pattern": r"^-?[0-9]+\.[0-9]{6,12}$"}


def plain(value: Any) -> Any:
    """A struct of the ledger, or what is in one, as JSON."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        found: dict[str, Any] = {"kind": tag} if isinstance(tag, str) else {}
        for name in value.__struct_fields__:
            item = getattr(value, name)
            found[name] = plain(item)
            if name in MONEY:
                found[f"{name}_credits"] = format_credits(item)
        return found
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of `plain` for values of this type."""
    return _schema(inspect.type_info(kind))


def _schema(kind: inspect.Type) -> dict[str, Any]:
    match kind:
        case inspect.StructType():
            return _struct(kind)
        case inspect.UnionType(types):
            return {"anyOf": [_schema(each) for each in types]}
        case inspect.EnumType(cls):
            return {"enum": [member.name.lower() for member in cls]}
        case inspect.VarTupleType(item):
            return {"type": "array", "items": _schema(item)}
        case inspect.TupleType(items):
            parts = [_schema(each) for each in items]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        case inspect.BytesType():
            return dict(HEX)
        case inspect.IntType():
            return dict(COUNT)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.NoneType():
            return {"type": "null"}
    return {"type": "string"}


def _struct(kind: inspect.StructType) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": {"const": kind.tag}} if isinstance(kind.tag, str) else {}
    for each in kind.fields:
        fields[each.name] = _schema(each.type)
        if each.name in MONEY:
            fields[f"{each.name}_credits"] = dict(DECIMAL)
    return an_object(fields)


def an_object(fields: dict[str, Any], *optional: str) -> dict[str, Any]:
    """The schema of an object with these fields and no other; all required but the `optional` ones."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }
