"""Defines the sources of `farflung ledger`: run folder, ledger file, export, or a validator's HTTP interface.

Whatever it is, what it says is worth what its proofs prove (explorer.checking). An export is executed again.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from farflung.app.explorer.job_class import read_terms
from farflung.app.explorer.ledger_export import ChainBuilder, chain_of
from farflung.app.explorer.schema_check import fault_of
from farflung.core import limits
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    RunError,
    UsageError,
    VersionError,
    type_and_text,
)
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.ledger import genesis_file, queries
from farflung.ledger.block import Genesis, read_block
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.peers.ledger_http import routes
from farflung.peers.ledger_http.handlers import Form
from farflung.peers.rundir import folder
from farflung.peers.rundir.genesis import genesis_in
from farflung.peers.rundir.runs import resolve_again, runs_folder

CHAIN: Final = "chain.db"
PATIENCE_SECONDS: Final = 20.0
WAIT_SECONDS: Final = 30  # that a source may make us wait at a time
TRIES: Final = 5
_CODE: Final = re.compile(r"FF-[A-Z]{2,5}-[0-9]{3}")


class LedgerSource(Protocol):
    """Answers paths of the interface. `known`: the genesis hash, where it is no hearsay."""

    name: str
    known: Hash | None
    terms: JobTerms | None  # of a job that this ledger is about, where they are at hand

    def get(self, path: str) -> Form:
        """The answer; raises a FarflungError."""
        ...


class FileLedgerSource:
    """A chain on this computer."""

    def __init__(self, name: str, chain: Chain, known: Hash | None = None, terms: JobTerms | None = None) -> None:
        """`known`: the genesis hash that follows from a run's own folder; `terms`: of the run's job."""
        self.name, self.chain, self.known, self.terms = name, chain, known, terms

    def get(self, path: str) -> Form:
        """The answer that a validator with this chain gives."""
        route, words = routes.found(path)
        return route.answer(partial(queries.reply, self.chain), words)


class HttpLedgerSource:
    """The interface of a validator."""

    def __init__(self, url: str) -> None:
        self.name = url
        self.known: Hash | None = None
        self.terms: JobTerms | None = None
        parts = urllib.parse.urlsplit(url)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
        if not is_web or parts.query:
            raise UsageError(
                "FF-APP-276",
                f"{url[:80]!r} is no place of a ledger",
                cause="it is neither a file nor http://HOST:PORT",
                hint="name a run, a ledger's file, an export, or the address of a validator's interface",
            )
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connect = partial(kind, str(parts.hostname), parts.port, timeout=PATIENCE_SECONDS)

    def get(self, path: str) -> Form:
        """The answer; one that is told to wait waits, some times. Raises NetworkError FF-APP-277, 278, 337."""
        for _ in range(TRIES):
            status, wait, body = self._ask(path)
            if status != http.client.TOO_MANY_REQUESTS:
                break
            time.sleep(min(wait, WAIT_SECONDS))
        said = self._read(body)
        if status != http.client.OK:
            raise _told(said)
        if fault := fault_of(said, routes.found(path)[0].schema):
            raise NetworkError(
                "FF-APP-337",
                f"{self.name} gives an answer of another form than it should",
                cause=fault[:200],
                hint="ask a validator of this version of farflung",
            )
        return said

    def _ask(self, path: str) -> tuple[int, int, bytes]:
        try:
            with contextlib.closing(self._connect()) as connection:
                connection.request("GET", path)
                reply = connection.getresponse()
                again = reply.headers.get("Retry-After", "1")
                wait = int(again) if again.isascii() and again.isdigit() and len(again) < 5 else 1
                return reply.status, wait, reply.read(limits.API_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(
                "FF-APP-277",
                f"{self.name} does not answer",
                cause=type_and_text(error),
                hint="see that the validator runs with --api, and that the address is right",
            ) from error

    def _read(self, body: bytes) -> Form:
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NetworkError(
                "FF-APP-278",
                f"{self.name} is no ledger's interface",
                cause="its answer is not a JSON object",
                hint="name the address that the validator prints when it starts",
            ) from error


def _told(said: Form) -> FarflungError:
    """An error of the other side, in its own words."""
    code, message, cause, hint = (str(said.get(name, ""))[:300] for name in ("code", "message", "cause", "hint"))
    return PolicyError(code if _CODE.fullmatch(code) else "FF-APP-278", message, cause=cause, hint=hint)


def open_source(named: str | None) -> LedgerSource:
    """What `--from` names: a URL, a file, a run; the newest run by default."""
    if named is not None and "://" in named:
        return HttpLedgerSource(named)
    return open_file(named)


def open_file(named: str | None) -> FileLedgerSource:
    """A source whose every block is at hand. Raises what reading and executing raise."""
    path = Path(named) if named is not None else None
    if path is not None and path.is_file():
        with path.open("rb") as file:
            is_database = file.read(16).startswith(b"SQLite format 3")
        return FileLedgerSource(path.name, _load(path) if is_database else chain_of(path))
    if path is not None and (path / CHAIN).is_file():
        return FileLedgerSource(path.name, _load(path / CHAIN))
    run = folder.find(runs_folder(), named)
    genesis = genesis_in(run, resolve_again(run).spec)
    return FileLedgerSource(run.name, _load(run.ledger / CHAIN, genesis), genesis.chain, _terms_of(run))


def _terms_of(run: folder.RunFolder) -> JobTerms | None:
    """The terms of a run's job; None where they cannot be read, or are not there yet: a ledger is read without them."""
    try:
        return read_terms(run.terms_file)
    except RunError:
        return None


def _load(path: Path, genesis: Genesis | None = None) -> Chain:
    """The chain in a ledger's file, which stays open. Raises RunError FF-APP-279, and what opening raises."""
    if not path.is_file():
        raise _no_ledger(path, "it is not there")
    return LedgerStore.open(path, genesis or _genesis_in(path)).load()


def _genesis_in(path: Path) -> Genesis:
    """What a ledger's file says that it began with."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            (data,) = connection.execute("SELECT value FROM meta WHERE name = 'genesis'").fetchone()
        return genesis_file.read(bytes(data))
    except VersionError:
        raise
    except (sqlite3.Error, TypeError, FarflungError) as error:
        raise _no_ledger(path, f"it names no genesis: {error}") from error


def _no_ledger(path: Path, cause: str) -> RunError:
    return RunError(
        "FF-APP-279",
        f"{path.name} is no ledger's file",
        cause=cause,
        hint="name another one with --from, or a run: `farflung status` lists them",
    )


def chain_from(source: LedgerSource, genesis: Genesis) -> Chain:
    """The chain of a source; blocks that come over a network are executed again here."""
    if isinstance(source, FileLedgerSource):
        return source.chain
    growing = ChainBuilder(genesis)
    start: int | None = 1
    while start is not None:
        said = source.get(f"/v1/blocks?from={start}&whole=1")
        for each in said["blocks"]:
            growing.add(read_block(base64.b64decode(each["canonical"], validate=True)))
        start = said["next"] if said["blocks"] else None
    return growing.chain


def pages(source: LedgerSource, path: str, name: str) -> Iterator[Form]:
    """All items of a list that comes in pages."""
    start: int | None = 0
    while start is not None:
        said = source.get(f"{path}?from={start}")
        yield from said[name]
        start = said["next"]
