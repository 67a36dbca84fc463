"""The bytes at the end of docs/protocol/sdbft.md are those that the code makes: another implementation starts there.

FARFLUNG_BLESS=1 writes them anew, after a change of format that is meant.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from farflung.core.codec import encode
from farflung.core.crypto import NS_VOTE, SigningKey, digest
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.block import Block, BlockHeader, txs_root
from farflung.ledger.sdbft.replica_messages import (
    BlockProposal,
    FinalBlocks,
    PendingTxs,
    ReplicaStatus,
    VoteMessage,
    VoteQuorum,
    read_message,
)
from farflung.ledger.transactions import SignedTx, Transfer, make_tx, sign_tx
from farflung.ledger.votes import SignedVote, Vote, VoteKind, certificate_of, has_quorum, sign_vote

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "sdbft.md"
BEGIN, END = "<!-- vectors -->\n\n```text\n", "```\n"
WIDTH = 128

KEYS = [SigningKey(bytes([seat + 1]) * 32) for seat in range(4)]
MEMBERS = tuple(key.public for key in KEYS)
CHAIN = Hash(b"\x11" * 32)
TX: SignedTx = sign_tx(KEYS[0], make_tx(CHAIN, KEYS[0].public, 7, Transfer(KEYS[1].public, 1000), fee=2))
HEADER = BlockHeader(CHAIN, 5, 1, 1234, MEMBERS[3], Hash(b"\x22" * 32), txs_root((TX,)), Hash(b"\x33" * 32))
VIEW = 3


def votes(kind: VoteKind, block: Hash) -> list[SignedVote]:
    return [sign_vote(KEYS[seat], seat, Vote(CHAIN, 1, VIEW, kind, block)) for seat in (0, 2, 3)]


def vectors() -> dict[str, bytes]:
    notarize, nullify, finalize = (
        votes(VoteKind.NOTARIZE, HEADER.id),
        votes(VoteKind.NULLIFY, ZERO_HASH),
        votes(VoteKind.FINALIZE, HEADER.id),
    )
    certificate = certificate_of(finalize, 4)
    first = nullify[0].vote
    shown = certificate_of(nullify, 4)
    found = {f"public key of seat {seat}": bytes(key) for seat, key in enumerate(MEMBERS)}
    found |= {"header": encode(HEADER), "block id": HEADER.id}
    for name, signed in (("NOTARIZE", notarize[0]), ("NULLIFY", nullify[0]), ("FINALIZE", finalize[0])):
        found[f"vote {name}"] = encode(signed.vote)
        found[f"what seat 0 signs for {name}"] = digest(NS_VOTE, encode(signed.vote))
        found[f"signature of seat 0 for {name}"] = signed.signature
    found |= {
        "certificate FINALIZE": encode(certificate),
        "message ballot": encode(VoteMessage(finalize[1])),
        "message quorum": encode(VoteQuorum(first, shown.seats, shown.signatures)),
        "message proposal": encode(BlockProposal(HEADER, (TX,), notarize[2])),
        "message status": encode(ReplicaStatus(1, 3, 4, 2, HEADER.id)),
        "message blocks": encode(FinalBlocks((Block(HEADER, (TX,), certificate),))),
        "message pending": encode(PendingTxs((TX,))),
    }
    return found


def written(found: dict[str, bytes]) -> str:
    lines = []
    for name, value in found.items():
        text = value.hex()
        lines.append(f"{name}:")
        lines += [f"  {text[at : at + WIDTH]}" for at in range(0, len(text), WIDTH)]
    return "\n".join(lines) + "\n"


def read(page: str) -> dict[str, bytes]:
    body = page.split(BEGIN)[1].split(END)[0]
    found = re.findall(r"^(\S[^:]*):\n((?:  [0-9a-f]+\n)+)", body, re.MULTILINE)
    return {name: bytes.fromhex("".join(text.split())) for name, text in found}


def test_the_page_shows_the_bytes_that_the_code_makes() -> None:
    page = PAGE.read_text("utf-8")
    if os.environ.get("FARFLUNG_BLESS"):
        head, rest = page.split(BEGIN)
        PAGE.write_text(head + BEGIN + written(vectors()) + END + rest.split(END, 1)[1], "utf-8")
        page = PAGE.read_text("utf-8")
    assert read(page) == vectors()


def test_the_messages_of_the_page_can_be_read_and_its_certificate_holds() -> None:
    page = read(PAGE.read_text("utf-8"))
    for name, data in page.items():
        if name.startswith("message "):
            assert read_message(data).__struct_config__.tag == name.removeprefix("message ")
    blocks = read_message(page["message blocks"])
    assert isinstance(blocks, FinalBlocks)
    (block,) = blocks.blocks
    vote = Vote(CHAIN, 1, VIEW, VoteKind.FINALIZE, block.header.id)
    assert has_quorum(block.certificate, vote, MEMBERS)
