"""Defines the paths of the interface in one table, which serves requests and generates the description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from farflung.core.errors import UsageError
from farflung.ledger.block import BlockHeader, Genesis
from farflung.ledger.motions import MotionRow, ParamsRow
from farflung.ledger.table_rows import KINDS, AccountRow, EpochRow, JobRow, LeaseRow, NodeRow, Row
from farflung.ledger.transactions import Tx
from farflung.ledger.validators import CommitteeRow, ValidatorRow
from farflung.ledger.votes import QuorumCertificate
from farflung.peers.ledger_http import handlers
from farflung.peers.ledger_http.handlers import Ask, Form, Words, wrong
from farflung.peers.ledger_http.json_schema import COUNT, DECIMAL, HEX, an_object, schema_of

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
BASE64: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
NEXT: Final[Schema] = {"anyOf": [COUNT, {"type": "null"}]}
FROM: Final = {"from": "where to begin: what `next` of the page before says"}


def a_list(item: Schema) -> Schema:
    """The schema of an array."""
    return {"type": "array", "items": item}


_SEALED: Final = {
    "id": HEX,
    "header": schema_of(BlockHeader),
    "certificate": schema_of(QuorumCertificate),
    "proof": an_object({"header": BASE64, "certificate": BASE64}),
}
_TX: Final = an_object(
    {
        "id": HEX,
        "height": COUNT,
        "time": COUNT,
        "place": COUNT,
        "failed": TEXT,
        "tx": schema_of(Tx),
        "proof": an_object({"inclusion": BASE64}),
    }
)
_SHORT: Final = an_object({"id": HEX, "sender": HEX, "operations": a_list(TEXT)})


def a_row(*kinds: type[Row]) -> Schema:
    """The schema of a proved row of one of these tables."""
    return an_object(
        {
            "table": {"enum": [kind.TABLE for kind in kinds]},
            "index": COUNT,
            "height": COUNT,
            "time": COUNT,
            "row": schema_of(kinds[0]) if len(kinds) == 1 else {"anyOf": [schema_of(k) for k in kinds]},
            "proof": an_object({"receipt": BASE64}),
        }
    )


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One path. Names in braces stand for one part each; `query` says what each word behind `?` means.

    `cost`: tokens that a client spends on it (explorer.rates), about the work it makes.
    """

    path: str
    answer: Callable[[Ask, Words], Form]
    schema: Schema
    query: Mapping[str, str] = field(default_factory=dict)
    cost: int = 1


ROUTES: Final = (
    HttpRoute("/v1/head", handlers.head, an_object({"genesis": HEX, "head": an_object(_SEALED)})),
    HttpRoute(
        "/v1/genesis",
        handlers.genesis,
        an_object({"id": HEX, "genesis": schema_of(Genesis), "proof": an_object({"genesis": BASE64})}),
    ),
    HttpRoute(
        "/v1/blocks",
        handlers.blocks,
        an_object(
            {
                "blocks": a_list(an_object({**_SEALED, "transactions": COUNT, "canonical": BASE64}, "canonical")),
                "next": NEXT,
            }
        ),
        {**FROM, "limit": f"how many, 1 to {handlers.PAGE}", "whole": "1: with each block's canonical bytes"},
        cost=4,
    ),
    HttpRoute(
        "/v1/blocks/{height}",
        handlers.block,
        an_object({**_SEALED, "transactions": a_list(_SHORT), "canonical": BASE64}),
        cost=4,
    ),
    HttpRoute("/v1/tx/{id}", handlers.tx, _TX, cost=2),
    HttpRoute("/v1/accounts/{key}", handlers.account, an_object({"account": a_row(AccountRow)})),
    HttpRoute("/v1/nodes", handlers.nodes, an_object({"nodes": a_list(a_row(NodeRow)), "next": NEXT}), FROM, cost=4),
    HttpRoute("/v1/nodes/{key}", handlers.node, an_object({"node": a_row(NodeRow)})),
    HttpRoute(
        "/v1/nodes/{key}/leases",
        handlers.node_leases,
        an_object({"leases": a_list(a_row(LeaseRow)), "next": NEXT}),
        FROM,
        cost=8,
    ),
    HttpRoute(
        "/v1/jobs/{id}",
        handlers.job,
        an_object(
            {
                "job": a_row(JobRow),
                "leases": a_list(a_row(LeaseRow)),
                "next_lease": NEXT,
                "rounds": a_list(a_row(EpochRow)),
                "next_round": NEXT,
            }
        ),
        {"leases_from": "the first lease, in the order of their making", "rounds_from": "the first round"},
        cost=4,
    ),
    HttpRoute(
        "/v1/jobs/{id}/life",
        handlers.life,
        an_object({"transactions": a_list(_TX), "height": COUNT, "head": COUNT}),
        {"from": "behind which height to look: what `height` of the page before says"},
        cost=8,
    ),
    HttpRoute(
        "/v1/steps",
        handlers.steps,
        an_object({"steps": a_list(a_row(CommitteeRow))}),
        {"from": "the epoch whose committee is known"},
        cost=4,
    ),
    HttpRoute(
        "/v1/validators",
        handlers.validators,
        an_object({"committee": a_row(CommitteeRow), "validators": a_list(a_row(ValidatorRow)), "next": NEXT}),
        FROM,
        cost=4,
    ),
    HttpRoute(
        "/v1/motions", handlers.motions, an_object({"motions": a_list(a_row(MotionRow)), "next": NEXT}), FROM, cost=4
    ),
    HttpRoute("/v1/committees/{epoch}", handlers.committee, an_object({"committee": a_row(CommitteeRow)})),
    HttpRoute("/v1/params", handlers.params, an_object({"params": a_row(ParamsRow)})),
    HttpRoute("/v1/receipts/{table}/{key}", handlers.receipt, a_row(*KINDS.values())),
    HttpRoute(
        "/v1/find/{digits}",
        handlers.find,
        an_object({"found": a_list(an_object({"where": TEXT, "name": HEX})), "is_all": {"type": "boolean"}}),
        cost=8,
    ),
)

ERROR: Final = an_object({"code": TEXT, "message": TEXT, "cause": TEXT, "hint": TEXT, "is_proved": {"const": False}})

__all__ = ["COUNT", "DECIMAL", "ERROR", "ROUTES", "HttpRoute", "found"]


def found(target: str) -> tuple[HttpRoute, dict[str, str]]:
    """The route of a request's target, and what its path and query say.

    Raises UsageError FF-APP-267 when there is no such path, FF-APP-272 for a query that it does not take.
    """
    path, _, query = target.partition("?")
    parts = path.split("/")
    for route in ROUTES:
        names = route.path.split("/")
        if len(names) == len(parts) and all(
            name == part or (name.startswith("{") and part) for name, part in zip(names, parts, strict=True)
        ):
            words = {name[1:-1]: part for name, part in zip(names, parts, strict=True) if name.startswith("{")}
            return route, words | _asked(route, query)
    raise UsageError(
        "FF-APP-267",
        "there is no such path",
        cause=f"{path[:80]} is none that the ledger's interface has",
        hint="/v1/openapi.json lists all paths",
    )


def _asked(route: HttpRoute, query: str) -> dict[str, str]:
    """The words behind `?`, each once."""
    said: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name not in route.query or name in said:
            raise wrong("query", ", ".join(route.query) + ", each once" if route.query else "empty")
        said[name] = value
    return said
