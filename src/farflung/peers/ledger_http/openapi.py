"""Writes the OpenAPI 3.1 description of the interface from the table of its routes."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, Final

from farflung.peers.ledger_http.routes import ERROR, ROUTES, HttpRoute

REFUSALS: Final = {
    "400": "the request cannot be read, or one of its fields is out of range",
    "404": "there is no such path, or nothing is recorded under this name, which no proof can show",
    "405": "another method than GET and HEAD",
    "421": "Host is neither an address nor a name of this listener",
    "429": "too many requests from this address; Retry-After says when again, in seconds",
    "500": "the answer is too large, or the ledger could not give it",
    "503": "too many connections; Retry-After says when again, in seconds. Sent before the request is read",
}


def description() -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "farflung ledger",
            "version": version("farflung"),
            "description": "Reads only. Rows, blocks and transactions carry their proof: canonical msgpack as base64.",
        },
        "paths": {route.path: {"get": _operation(route), "head": _short(route)} for route in ROUTES},
    }


def _operation(route: HttpRoute) -> dict[str, Any]:
    about = (route.answer.__doc__ or "").strip()
    return {
        "summary": about.partition("\n")[0],
        "parameters": _parameters(route),
        "responses": {
            "200": _response("the answer", route.schema),
            **{status: _response(meaning, ERROR) for status, meaning in REFUSALS.items()},
        },
    }


def _short(route: HttpRoute) -> dict[str, Any]:
    """The same without a body."""
    met = {"200": "as to GET, without the body", **REFUSALS}
    return {
        "summary": "Whether GET would be answered",
        "parameters": _parameters(route),
        "responses": {status: {"description": meaning} for status, meaning in met.items()},
    }


def _parameters(route: HttpRoute) -> list[dict[str, Any]]:
    text = {"type": "string", "pattern": "^[0-9a-z_]+$"}
    named = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"{(\w+)}", route.path)
    ]
    asked = [
        {"name": name, "in": "query", "description": about, "schema": {"type": "integer", "minimum": 0}}
        for name, about in route.query.items()
    ]
    return named + asked


def _response(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}
