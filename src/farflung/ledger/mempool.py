"""Holds transactions that wait for a block, and decides their admission, order and eviction.

Pure: states and times come as arguments, signatures are judged by a function that is handed in. A validator holds what
it was handed and what other validators passed on (docs/protocol/sdbft, `PendingTxs`); nothing here is law, a leader may
choose otherwise. The rules:

    of one sender    nonces in order, none skipped in a block; at most limits.POOL_SENDER ahead of its account; all its
                     waiting fees together within its balance, so that a crowd of them costs what it says
    same nonce       the higher fee stays; of equal ones the first
    into a block     the highest fee first among each sender's next ones, then who came first
    when it is full  what pays the least makes room for what pays more, and takes along what waits behind it
    let go           nonce used up, `expires` reached by block time, fee not payable any more, limits.POOL_MS old
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.ids import Hash, PeerId
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.rules.accounts import unpayable
from farflung.ledger.stateless_checks import Stamp
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx, tx_id
from farflung.ledger.tx_results import RejectedResult

Fault = tuple[str, str]  # code and message of what is wrong with a transaction
Judge = Callable[[SignedTx], Fault | None]


@dataclass(frozen=True, slots=True)
class MempoolLimits:
    """Of a whole pool, and of one sender in it; `ms`: how long something waits."""

    count: int = limits.POOL_TXS
    size: int = limits.POOL_BYTES
    sender: int = limits.POOL_SENDER
    ms: int = limits.POOL_MS


BOUNDS: Final = MempoolLimits()


class MempoolEntry(NamedTuple):
    """One transaction in the pool, and when it came: as a number in order, and by the validator's clock."""

    signed: SignedTx
    name: Hash
    size: int
    number: int
    came: int

    @property
    def fee(self) -> int:
        """Pico-credits."""
        return self.signed.tx.fee


class CheckedTxCache:
    """Remembers what was judged, by id and signature together: nobody's wrong signature spoils the right one."""

    def __init__(self, judge: Judge, most: int = limits.POOL_VERDICTS) -> None:
        self._judge, self._most = judge, most
        self._known: dict[Stamp, Fault | None] = {}

    def __call__(self, signed: SignedTx) -> Fault | None:
        """What `judge` says; asked once while it is remembered."""
        key = (tx_id(signed), signed.signature)
        if key not in self._known:
            self._keep(key, self._judge(signed))
        return self._known[key]

    def _keep(self, key: Stamp, verdict: Fault | None) -> None:
        while len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[key] = verdict

    def learn(self, name: Hash, signed: SignedTx, fault: Fault | None = None) -> None:
        """Remembers what was found elsewhere of the transaction of this id; None: that it is sound."""
        self._keep((name, signed.signature), fault)

    def has(self, stamp: Stamp) -> bool:
        """Whether there is a verdict on the transaction of this id and signature, whatever it says."""
        return stamp in self._known

    def __contains__(self, stamp: object) -> bool:
        """Whether the transaction of this id and signature was judged and found sound: `Stamps` for apply_block."""
        return self._known.get(cast(Stamp, stamp), ("", "")) is None

    def knows(self, signed: SignedTx) -> bool:
        """Whether it was judged and found sound."""
        return (tx_id(signed), signed.signature) in self


class Mempool:
    """What waits at one validator."""

    def __init__(self, judge: Judge, bounds: MempoolLimits = BOUNDS) -> None:
        """`judge` says what is wrong with form, chain or signature."""
        self._judge, self._bounds = judge, bounds
        self._of: dict[PeerId, dict[int, MempoolEntry]] = {}
        self._fees: dict[PeerId, int] = {}
        self._order: dict[int, MempoolEntry] = {}  # by arrival
        self._cheapest: list[tuple[int, int]] = []  # heaps, with entries that are gone
        self._ending: list[tuple[int, int]] = []
        self._names: dict[Hash, int] = {}
        self._number = self.size = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: Hash) -> bool:
        return name in self._names

    def of(self, sender: PeerId) -> tuple[SignedTx, ...]:
        """What waits of one sender, by nonce."""
        return tuple(self._of[sender][nonce].signed for nonce in sorted(self._of.get(sender, ())))

    @property
    def all(self) -> tuple[SignedTx, ...]:
        """Everything, the oldest first."""
        return tuple(each.signed for each in self._order.values())

    def offer(self, signed: SignedTx, state: LedgerState, now: int) -> RejectedResult | None:
        """Takes a transaction in; None when it waits (or waited already). `now`: the validator's clock, ms.

        What `state` cannot take yet, a nonce further on, waits for those before it.
        """
        unsound = self._judge(signed)
        if unsound is not None:
            return RejectedResult(Hash(bytes(32)), *unsound)
        name = tx_id(signed)
        if name in self._names:
            return None
        refused = self._refusal(signed, state)
        if refused is not None:
            return RejectedResult(name, *refused)
        size = len(encode(signed))
        if not self._make_room(signed, size):
            return RejectedResult(name, "FF-LEDG-350", "too much is waiting that pays as much or more")
        self._put(MempoolEntry(signed, name, size, self._number, now))
        return None

    def _refusal(self, signed: SignedTx, state: LedgerState) -> tuple[str, str] | None:
        tx = signed.tx
        account = state.find(AccountRow, tx.sender) or AccountRow(tx.sender)
        at_its_turn = replace(account, nonce=max(account.nonce, tx.nonce))
        fault = unpayable(tx, at_its_turn, state.time, state.params)
        if fault is not None:
            return fault
        if tx.nonce >= account.nonce + self._bounds.sender:
            return "FF-LEDG-351", f"nonce {tx.nonce} is too far ahead of {account.nonce}"
        known = self._of.get(tx.sender, {}).get(tx.nonce)
        if known is not None and tx.fee <= known.fee:
            return "FF-LEDG-352", f"another one of nonce {tx.nonce} waits and pays {known.fee}"
        owed = self._fees.get(tx.sender, 0) - (known.fee if known is not None else 0)
        if owed + tx.fee > account.balance:
            return "FF-LEDG-353", f"the fees of all that waits are above the balance {account.balance}"
        return None

    def _make_room(self, signed: SignedTx, size: int) -> bool:
        """Lets go of what pays less, if that is enough for a newcomer; otherwise of nothing."""
        tx = signed.tx
        known = self._of.get(tx.sender, {}).get(tx.nonce)
        leaving = {known.number: known} if known is not None else {}
        freed = sum(each.size for each in leaving.values())
        passed: list[tuple[int, int]] = []
        is_enough = True
        while self.size - freed + size > self._bounds.size or len(self._order) - len(leaving) >= self._bounds.count:
            if not self._cheapest or self._cheapest[0][0] >= tx.fee:
                is_enough = False
                break
            entry = heapq.heappop(self._cheapest)
            passed.append(entry)
            least = self._order.get(-entry[1])
            if least is None or least.signed.tx.sender == tx.sender:
                continue  # gone, or what the newcomer itself waits for
            for each in self._behind(least):
                if each.number not in leaving:
                    leaving[each.number] = each
                    freed += each.size
        for entry in passed:
            heapq.heappush(self._cheapest, entry)
        if is_enough:
            for each in leaving.values():
                self._drop(each)
        return is_enough

    def _behind(self, pool_entry: MempoolEntry) -> list[MempoolEntry]:
        """It and what waits for it."""
        tx = pool_entry.signed.tx
        return [each for nonce, each in self._of[tx.sender].items() if nonce >= tx.nonce]

    def _put(self, pool_entry: MempoolEntry) -> None:
        tx = pool_entry.signed.tx
        self._of.setdefault(tx.sender, {})[tx.nonce] = pool_entry
        self._fees[tx.sender] = self._fees.get(tx.sender, 0) + tx.fee
        self._order[pool_entry.number] = pool_entry
        self._names[pool_entry.name] = pool_entry.number
        self.size += pool_entry.size
        self._number += 1
        heapq.heappush(self._cheapest, (tx.fee, -pool_entry.number))  # of equal fees the last one goes
        if tx.expires:
            heapq.heappush(self._ending, (tx.expires, pool_entry.number))
        for heap, sign in ((self._cheapest, -1), (self._ending, 1)):
            if len(heap) > 2 * len(self._order) + 64:
                heap[:] = [entry for entry in heap if sign * entry[1] in self._order]
                heapq.heapify(heap)

    def _drop(self, pool_entry: MempoolEntry) -> None:
        tx = pool_entry.signed.tx
        del self._order[pool_entry.number], self._names[pool_entry.name], self._of[tx.sender][tx.nonce]
        self.size -= pool_entry.size
        self._fees[tx.sender] -= tx.fee
        if not self._of[tx.sender]:
            del self._of[tx.sender], self._fees[tx.sender]

    def take(self, state: LedgerState, time: int, count: int, size: int) -> tuple[SignedTx, ...]:
        """What enters a block of `time` on `state`: at most `count` transactions of `size` bytes together.

        They stay in the pool until a final block is `settled`: a proposal may come to nothing. What one of them pays
        away may leave another without its fee: whoever builds the block drops what executing it refuses.
        """
        heads = [each for sender in self._of if (each := self._next(sender, state)) is not None]
        heap = [(-each.fee, each.number) for each in heads]
        heapq.heapify(heap)
        taken: list[SignedTx] = []
        paid: dict[PeerId, int] = {}
        while heap and len(taken) < count:
            pool_entry = self._order[heapq.heappop(heap)[1]]
            tx = pool_entry.signed.tx
            account = state.find(AccountRow, tx.sender) or AccountRow(tx.sender)
            spent = paid.get(tx.sender, 0)
            as_then = replace(account, nonce=tx.nonce, balance=account.balance - spent)
            if pool_entry.size > size or unpayable(tx, as_then, time, state.params) is not None:
                continue  # and nothing behind it
            taken.append(pool_entry.signed)
            size, paid[tx.sender] = size - pool_entry.size, spent + tx.fee
            after = self._of[tx.sender].get(tx.nonce + 1)
            if after is not None:
                heapq.heappush(heap, (-after.fee, after.number))
        return tuple(taken)

    def is_ready(self, state: LedgerState) -> bool:
        """Whether something could enter the next block on `state`."""
        return any(self._next(sender, state) is not None for sender in self._of)

    def _next(self, sender: PeerId, state: LedgerState) -> MempoolEntry | None:
        account = state.find(AccountRow, sender)
        return self._of[sender].get(account.nonce if account is not None else 0)

    def settled(self, txs: Iterable[SignedTx], state: LedgerState, now: int) -> int:
        """A block of `txs` became final and led to `state`: lets go of all that can enter none any more.

        Returns how many were let go.
        """
        before = len(self._order)
        for sender in {signed.tx.sender for signed in txs}:
            self._review(sender, state)
        while self._ending and self._ending[0][0] <= state.time:
            ended = self._order.get(heapq.heappop(self._ending)[1])
            if ended is not None:
                self._drop(ended)
        while self._order:
            oldest = next(iter(self._order.values()))
            if now - oldest.came < self._bounds.ms:
                break
            self._drop(oldest)
        return before - len(self._order)

    @property
    def ends(self) -> int:
        """When the next transaction that waits is void: the clock lets go of it; NEVER where none ends."""
        while self._ending and self._ending[0][1] not in self._order:
            heapq.heappop(self._ending)
        return self._ending[0][0] if self._ending else limits.NEVER

    def _review(self, sender: PeerId, state: LedgerState) -> None:
        account = state.find(AccountRow, sender) or AccountRow(sender)
        left = account.balance
        for nonce in sorted(self._of.get(sender, ())):
            pool_entry = self._of[sender][nonce]
            if nonce < account.nonce or pool_entry.fee > left:
                self._drop(pool_entry)
            else:
                left -= pool_entry.fee
