"""Checks an answer against the interface's JSON schema before anything reads it."""

from __future__ import annotations

import re
from typing import Any


def fault_of(value: Any, schema: dict[str, Any], at: str = "$") -> str:
    """Where a value is not what the schema says, or the empty text: as much of JSON Schema as we write."""
    if "anyOf" in schema:
        faults = [fault_of(value, each, at) for each in schema["anyOf"]]
        return "" if "" in faults else min(faults, key=len)
    if "const" in schema:
        return "" if value == schema["const"] else f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{at}: {value!r} is none of {schema['enum']}"
    match schema["type"]:
        case "object":
            return _fault_of_object(value, schema, at)
        case "array":
            if not isinstance(value, list):
                return f"{at} is no array"
            items = schema.get("prefixItems") or [schema["items"]] * len(value)
            if len(items) != len(value):
                return f"{at} has {len(value)} items"
            return next(filter(None, (fault_of(v, s, f"{at}[]") for v, s in zip(value, items, strict=True))), "")
        case "string":
            is_text = isinstance(value, str) and re.search(schema.get("pattern", ""), value)
            return "" if is_text else f"{at}: {value!r} is no such text"
        case "integer":
            is_number = isinstance(value, int) and not isinstance(value, bool)
            is_in = is_number and schema.get("minimum", value) <= value <= schema.get("maximum", value)
            return "" if is_in else f"{at}: {value!r} is no such number"
        case "boolean":
            return "" if isinstance(value, bool) else f"{at} is no boolean"
        case "null":
            return "" if value is None else f"{at} is not null"
    return f"{at}: unknown schema {schema}"


def _fault_of_object(value: Any, schema: dict[str, Any], at: str) -> str:
    if not isinstance(value, dict):
        return f"{at} is no object"
    if missing := set(schema["required"]) - set(value):
        return f"{at} lacks {missing}"
    if more := set(value) - set(schema["properties"]):
        return f"{at} has {more} besides"
    faults = (fault_of(value[name], schema["properties"][name], f"{at}.{name}") for name in value)
    return next(filter(None, faults), "")
