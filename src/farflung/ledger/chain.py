"""A chain held by a committee of one: it proposes blocks, and it adopts only what it has checked itself.

`propose` does not move the chain: the caller first makes the block durable, then calls `adopt` (ledger.io.store
does both), so that nobody is ever told of a block that a crash could take back. `adopt` re-executes every block
it did not just propose, which is all that replay and a second reader need.

Time: a block is later than its parent by 1 ms at least and by `params.step_ms_max` (an hour) at most. A clock that
went back gives parent + 1; a clock that leapt ahead moves the ledger one hour a block, so that one bad reading
cannot run out every deadline. After a long pause empty blocks catch up.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_HEADER, SigningKey
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import Hash
from farflung.ledger.block import Block, Certificate, Genesis, Header, check_certificate, txs_root
from farflung.ledger.results import AlreadyApplied, Failed, Outcome, Rejected, Result
from farflung.ledger.state import State, apply_block, genesis_header, genesis_state
from farflung.ledger.tx import SignedTx, tx_id

_HEADER_BYTES = 4 * limits.KIB  # of BLOCK_BYTES, kept for header, certificate and list lengths


class Chain:
    """The blocks since genesis and the state after the last. Without a key it can read, not propose."""

    def __init__(self, genesis: Genesis, key: SigningKey | None = None) -> None:
        self.genesis, self._key = genesis, key
        self.state: State = genesis_state(genesis)
        self.head: Header = genesis_header(genesis)
        self.certificate: Certificate = ()
        self.blocks: list[Block] = []
        self._found: dict[Hash, tuple[int, str]] = {}
        self._draft: tuple[Block, State, tuple[Outcome, ...]] | None = None

    @property
    def id(self) -> Hash:
        """The chain's id: the hash of its genesis."""
        return self.state.law.chain

    def find(self, name: Hash) -> int | None:
        """The height of the block that holds the transaction of this id."""
        place = self._found.get(name)
        return place[0] if place else None

    def next_time(self, now_ms: int) -> int:
        """The time of a block proposed now: after the parent, at most `step_ms_max` after it."""
        return min(max(now_ms, self.head.time + 1), self.head.time + self.genesis.params.step_ms_max)

    def propose(self, txs: Sequence[SignedTx], now_ms: int) -> tuple[Block, tuple[Result, ...]]:
        """The next block, signed, and one result for each transaction; the chain itself stays where it is.

        Raises PolicyError FF-LEDG-068 without a validator's key.
        """
        time = self.next_time(now_ms)
        fresh, held_back = self._sift(txs)
        state, outcomes = apply_block(self.state, time, [txs[place] for place in fresh])
        of_place = dict(zip(fresh, outcomes, strict=True))
        included = tuple(txs[place] for place in fresh if not isinstance(of_place[place], Rejected))
        block = self._signed(state, included)
        kept = tuple(outcome for outcome in outcomes if not isinstance(outcome, Rejected))
        self._draft = (block, state, kept)
        results = [of_place.get(place) or held_back[place] for place in range(len(txs))]
        return block, tuple(results)

    def _sift(self, txs: Sequence[SignedTx]) -> tuple[list[int], dict[int, Result]]:
        """Places of the transactions to execute, and the results of those that need none."""
        fresh: list[int] = []
        held_back: dict[int, Result] = {}
        room, names = limits.BLOCK_BYTES - _HEADER_BYTES, set[Hash]()
        for place, signed in enumerate(txs):
            try:
                name, size = tx_id(signed), len(encode(signed))
            except (OverflowError, TypeError, ValueError):
                fresh.append(place)  # apply_block says what is wrong with it
                continue
            if name in self._found:
                held_back[place] = AlreadyApplied(name, *self._found[name])
            elif name in names:
                held_back[place] = Rejected(name, "FF-LEDG-008", "handed in twice at once")
            elif min(size, limits.TX_BYTES) > room or len(fresh) == limits.BLOCK_TXS:
                held_back[place] = Rejected(name, "FF-LEDG-007", "the block is full: hand it in again")
            else:
                room -= min(size, limits.TX_BYTES)  # a larger one is refused by apply_block
                names.add(name)
                fresh.append(place)
        return fresh, held_back

    def _signed(self, state: State, txs: tuple[SignedTx, ...]) -> Block:
        if self._key is None or self._key.public not in self.genesis.validators:
            raise PolicyError(
                "FF-LEDG-068",
                "cannot propose a block",
                cause="this process does not hold the key of a validator",
                hint="send transactions to the ledger's validator",
            )
        header = Header(
            self.id, state.height, state.time, self.head.id, txs_root(txs), state.root, state.summary
        )
        seat = self.genesis.validators.index(self._key.public)
        return Block(header, txs, ((seat, self._key.sign(NS_HEADER, encode(header))),))

    def state_after(self, block: Block) -> State:
        """The state that `block` leads to, checked in every respect; raises what `adopt` raises."""
        return self._judge(block)[0]

    def adopt(self, block: Block) -> tuple[Outcome, ...]:
        """Checks everything, then moves the chain to `block`.

        Raises VerificationError: FF-LEDG-061 not the next block, -062 time, -063 transaction root, -064 holds a
        transaction that may not be in it, -065 state root, -066 certificate, -067 too large.
        """
        state, outcomes = self._judge(block)
        self.state, self.head, self.certificate = state, block.header, block.certificate
        self.blocks.append(block)
        self._draft = None
        for outcome in outcomes:
            code = outcome.code if isinstance(outcome, Failed) else ""
            self._found[outcome.tx] = (block.header.height, code)
        return outcomes

    def _judge(self, block: Block) -> tuple[State, tuple[Outcome, ...]]:
        if self._draft and self._draft[0] is block:
            return self._draft[1], self._draft[2]
        self._check_header(block)
        check_certificate(block.header, block.certificate, self.genesis.validators)
        state, outcomes = apply_block(self.state, block.header.time, block.txs)
        names = {outcome.tx for outcome in outcomes if not isinstance(outcome, Rejected)}
        if len(names) < len(block.txs):
            raise _wrong(block, "FF-LEDG-064", "it holds a transaction that may not be in it")
        if block.header.tables != state.summary or block.header.state != state.root:
            raise _wrong(block, "FF-LEDG-065", "executing it gives another state root")
        return state, outcomes

    def _check_header(self, block: Block) -> None:
        header, parent = block.header, self.head
        if (header.chain, header.height, header.parent) != (self.id, parent.height + 1, parent.id):
            raise _wrong(block, "FF-LEDG-061", f"it does not follow block {parent.height} of this chain")
        if not parent.time < header.time <= parent.time + self.genesis.params.step_ms_max:
            raise _wrong(block, "FF-LEDG-062", f"its time {header.time} does not follow {parent.time}")
        if len(block.txs) > limits.BLOCK_TXS or len(encode(block)) > limits.BLOCK_BYTES:
            raise _wrong(block, "FF-LEDG-067", "it is over the size limits")
        if header.txs != txs_root(block.txs):
            raise _wrong(block, "FF-LEDG-063", "its transactions are not those of its header")


def _wrong(block: Block, code: str, cause: str) -> VerificationError:
    return VerificationError(
        code,
        f"block {block.header.height} is refused",
        cause=cause,
        hint="fetch the blocks again from the validator; if it stays so, the validator's history is forged",
    )
