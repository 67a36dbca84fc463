"""Stores the final blocks since genesis.

A chain adopts only blocks that its committee certified and that it has executed itself.

`propose` does not move the chain: the caller first makes the block durable, then calls `adopt` (ledger.io.ledger_store
does both), so that nobody is ever told of a block that a crash could take back. A committee of one proposes and
certifies in one step; in a larger one ledger.sdbft decides what is final, and the chain is told by `adopt_many`.

Who replays a chain does not judge its transactions' signatures again (docs/protocol/sdbft.md, "Validity"), except a
second reader (`audits`): the fraud of a single notary shows in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import Hash
from farflung.core.release import LAW
from farflung.ledger.block import Block, BlockHeader, Genesis, check_certificate, vote_for
from farflung.ledger.block_execution import ExecutedBlock, execute, genesis_block, make, name_of, next_time
from farflung.ledger.history import ChainHistory, InMemoryHistory
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.snapshot import SnapshotCache
from farflung.ledger.state_transition import LedgerState
from farflung.ledger.stateless_checks import TRUSTED, UNJUDGED
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import AlreadyAppliedResult, Outcome, Result
from farflung.ledger.votes import NO_CERTIFICATE, QuorumCertificate, VoteKind, certificate_of, sign_vote

_PAGE: Final = 64  # blocks that are read at a time


class Chain:
    """The state after the last final block, and the `history` before it. Without a key it can read, not propose."""

    def __init__(
        self,
        genesis: Genesis,
        key: SigningKey | None = None,
        *,
        audits: bool = False,
        history: ChainHistory | None = None,
        tip: ExecutedBlock | None = None,
        certificate: QuorumCertificate = NO_CERTIFICATE,
        law: int = LAW,
    ) -> None:
        """`audits`: judge every transaction's signature, as one does who trusts no committee. `law`: that the program
        knows.

        `tip` with its certificate: where the chain goes on, not at genesis; `history` knows what was before it.
        """
        self.genesis, self._key, self._audits, self.law = genesis, key, audits, law
        self.history: ChainHistory = history or InMemoryHistory()
        self.tip: ExecutedBlock = tip or genesis_block(genesis)
        self.certificate = certificate
        self.snapshots = SnapshotCache()
        self._held: dict[Hash, ExecutedBlock] = {}

    @property
    def id(self) -> Hash:
        """The chain's id: the hash of its genesis."""
        return self.state.law.chain

    @property
    def state(self) -> LedgerState:
        """What the ledger knows after the last block."""
        return self.tip.state

    @property
    def head(self) -> BlockHeader:
        """The last block's header."""
        return self.tip.header

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks that are kept, read at once: for who holds a whole chain in memory."""
        return tuple(self.kept())

    @property
    def steps(self) -> tuple[LedgerReceipt, ...]:
        """Each new epoch's row in table committees, certified by the committee before it."""
        return tuple(self.history.steps(0, self.state.committee.epoch))

    def kept(self) -> Iterator[Block]:
        """All blocks that are kept, one after the other: for who looks at each once, however long the chain is."""
        for first in range(self.history.first, self.head.height + 1, _PAGE):
            yield from self.history.blocks(first, _PAGE)

    def find(self, name: Hash) -> int | None:
        """The height of the block that holds the transaction of this id."""
        place = self.history.find(name)
        return place[0] if place else None

    def applied(self, signed: SignedTx) -> AlreadyAppliedResult | None:
        """Where the chain holds this transaction already, and what became of it.

        None also for one so old that it was pruned: its number is used up, so that it can never happen again.
        """
        name = name_of(signed)
        account = None if name is None else self.state.find(AccountRow, signed.tx.sender)
        if name is None or account is None or signed.tx.nonce >= account.nonce:
            return None  # without a look at the disk: nearly all are new
        place = self.history.find(name)
        return AlreadyAppliedResult(name, *place) if place is not None else None

    def code_of(self, name: Hash) -> str:
        """Why the transaction of this id failed in its block; empty if it did not, or is in none."""
        place = self.history.find(name)
        return place[1] if place else ""

    def next_time(self, now_ms: int) -> int:
        """The time of a block proposed now: after the parent, at most `step_ms_max` after it."""
        return next_time(self.tip, now_ms)

    def propose(self, txs: Sequence[SignedTx], now_ms: int) -> tuple[Block, tuple[Result, ...]]:
        """The next block, certified, and one result for each transaction; the chain itself stays where it is.

        Raises PolicyError FF-LEDG-068 unless this key's is the only seat.
        """
        key, committee = self._key, self.state.committee
        if key is None or committee.members != (key.public,):
            raise PolicyError(
                "FF-LEDG-068",
                "cannot propose a block",
                cause="this process does not hold the key of the only validator",
                hint="send transactions to the ledger's validator",
            )
        old = [self.applied(signed) for signed in txs]
        fresh = [signed for signed, known in zip(txs, old, strict=True) if known is None]
        made, outcomes = make(self.tip, fresh, now_ms, key.public, law=self.law)
        self.hold(made)
        vote = vote_for(made.header, made.header.height - committee.first + 1, VoteKind.FINALIZE)
        block = Block(made.header, made.txs, certificate_of([sign_vote(key, 0, vote)], 1))
        rest = iter(outcomes)
        return block, tuple(known or next(rest) for known in old)

    def hold(self, executed: ExecutedBlock) -> None:
        """Remembers a block that was executed and is not final yet, so that adopting it does not execute it again."""
        self._held[executed.header.id] = executed

    def adopt(self, block: Block) -> tuple[Outcome, ...]:
        """Moves the chain to a block that has a FINALIZE certificate; raises what `adopt_many` raises."""
        return self.adopt_many((block,))[0]

    def adopt_many(self, blocks: Sequence[Block]) -> tuple[tuple[Outcome, ...], ...]:
        """Checks everything, then moves the chain over `blocks`, all or none, of which the last has a FINALIZE.

        Raises VerificationError: FF-LEDG-061 to -065, -067 and -251 as `execution.execute`, -066 certificate, -252 not
        final; RunError FF-LEDG-270.
        """
        return self.move(blocks, self.judge(blocks))

    def move(self, blocks: Sequence[Block], made: Sequence[ExecutedBlock]) -> tuple[tuple[Outcome, ...], ...]:
        """Moves the chain over blocks that `judge` has just found to lead to `made`."""
        for block, executed in zip(blocks, made, strict=True):
            self.history.add(block, executed)
            self.tip, self.certificate = executed, block.certificate
        self._held.clear()
        return tuple(executed.outcomes for executed in made)

    def judge(self, blocks: Sequence[Block]) -> list[ExecutedBlock]:
        """What `blocks` lead to, one after the other; the chain stays. Raises what `adopt_many` raises."""
        made: list[ExecutedBlock] = []
        parent = self.tip
        for place, block in enumerate(blocks):
            header = block.header
            check_certificate(header, block.certificate, parent.state.committee.members)
            if not _is_final(blocks, place):
                raise VerificationError(
                    "FF-LEDG-252",
                    f"block {header.height} is not final",
                    cause="it is notarized only, and no later block of its epoch that came with it is finalized",
                    hint="fetch the blocks again, with those that follow",
                )
            held = self._held.get(header.id)
            is_held = held is not None and held.txs == block.txs and header.parent == parent.header.id
            parent = (
                held
                if held is not None and is_held
                else execute(parent, header, block.txs, judged=UNJUDGED if self._audits else TRUSTED, law=self.law)
            )
            made.append(parent)
        return made


def _is_final(blocks: Sequence[Block], place: int) -> bool:
    """Whether the block has a FINALIZE, or the next one is of its epoch: then that one is final, or refused itself."""
    if blocks[place].certificate.kind == VoteKind.FINALIZE:
        return True
    return place + 1 < len(blocks) and blocks[place + 1].header.epoch == blocks[place].header.epoch
