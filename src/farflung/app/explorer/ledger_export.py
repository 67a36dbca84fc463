"""Writes a ledger as JSON lines for `farflung ledger export`, and reads and re-executes such a file.

    {"type": "genesis", "id": ..., "genesis": {...}, "canonical": BASE64}
    {"type": "block", "height": ..., "id": ..., "transactions": [...], "certificate": ..., "canonical": BASE64}
    {"type": "row", "table": ..., "index": ..., "row": {...}, "canonical": BASE64}
    {"type": "end", "height": ..., "state": ...}

All blocks in their order, then all rows as they stand after the last one. A reader needs `canonical` of genesis and
blocks alone: the rest follows from them, and is compared.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.file_header import FileFormat, check_json
from farflung.core.release import VERSION
from farflung.ledger.block import Block, Genesis, read_block
from farflung.ledger.chain import Chain
from farflung.ledger.table_rows import KINDS
from farflung.ledger.transactions import tx_id
from farflung.ledger.votes import VoteKind
from farflung.peers.ledger_http.handlers import in_base64
from farflung.peers.ledger_http.json_schema import plain

_FORM: Final = FileFormat("ledger-export", 2, "export the ledger once more")
LINE_BYTES: Final = 8 * limits.BLOCK_BYTES  # canonical in base64, and the same in words


def lines_of(chain: Chain) -> Iterator[bytes]:
    """The lines of a chain, one at a time; of its blocks no more than a page is held."""
    genesis = chain.genesis
    named = {"format": _FORM.version, "program": VERSION}
    yield _line("genesis", **named, id=chain.id.hex(), genesis=plain(genesis), canonical=in_base64(genesis))
    for block in chain.kept():
        yield _line(
            "block",
            height=block.header.height,
            time=block.header.time,
            id=block.header.id.hex(),
            transactions=[{"id": tx_id(signed).hex(), **plain(signed.tx)} for signed in block.txs],
            certificate=plain(block.certificate),
            canonical=in_base64(block),
        )
    for name in KINDS:
        for index, row in enumerate(chain.state.tables[name].rows):
            yield _line("row", table=name, index=index, row=plain(row), canonical=in_base64(row))
    yield _line("end", height=chain.head.height, state=chain.head.state.hex())


def _line(kind: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"type": kind, **fields}) + b"\n"


def chain_of(path: Path) -> Chain:
    """The chain that an export leads to, every block executed again. Raises VerificationError FF-APP-281,
    VersionError FF-CORE-095.
    """
    try:
        with path.open("rb") as file:
            return _executed(file)
    except (ProtocolError, LookupError, TypeError, binascii.Error, msgspec.DecodeError, RecursionError) as error:
        raise _wrong(path, f"one of its lines cannot be read: {error}") from error
    except ValueError as error:
        raise _wrong(path, str(error)) from error


def _executed(file: BinaryIO) -> Chain:
    """Raises ValueError with what is wrong."""
    growing: ChainBuilder | None = None
    while line := file.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise ValueError("one of its lines is too long")
        said = msgspec.json.decode(line, type=dict[str, Any])
        match said["type"]:
            case "genesis" if growing is None:
                check_json(_FORM, line)
                growing = ChainBuilder(decode(_bytes(said), Genesis, limits.TX_BYTES))
            case "block" if growing is not None:
                growing.add(read_block(_bytes(said)))
            case "row" if growing is not None:
                table, index = said["table"], said["index"]
                rows = growing.chain.state.tables[table].rows
                if type(index) is not int or not 0 <= index < len(rows):
                    raise ValueError(f"its blocks lead to no row {index} of {table}")
                if in_base64(rows[index]) != said["canonical"]:
                    raise ValueError(f"row {index} of {table} is not what its blocks lead to")
            case "end" if growing is not None:
                head = growing.chain.head
                if (head.height, head.state.hex()) != (said["height"], said["state"]):
                    raise ValueError("it does not end where it says")
                return growing.chain
            case _:
                raise ValueError("its lines are not in order")
    raise ValueError("it has no end")


class ChainBuilder:
    """A chain that is told one block after the other, and moves whenever one of them makes itself and others final."""

    def __init__(self, genesis: Genesis) -> None:
        self.chain = Chain(genesis)
        self._waiting: list[Block] = []

    def add(self, block: Block) -> None:
        """The next block. Raises what `Chain.adopt_many` raises."""
        self._waiting.append(block)
        if block.certificate.kind == VoteKind.FINALIZE:
            self.chain.adopt_many(self._waiting)
            self._waiting.clear()


def _bytes(said: dict[str, Any]) -> bytes:
    return base64.b64decode(said["canonical"], validate=True)


def _wrong(path: Path, cause: str) -> VerificationError:
    return VerificationError(
        "FF-APP-281",
        f"{path.name} is not the export of a ledger",
        cause=cause[:200],
        hint="write it again with `farflung ledger export`",
    )
