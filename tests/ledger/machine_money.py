"""Random transfers, nodes, keys and channels."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from ledger_world import ACTORS, NODES, REQUESTER, STRANGER, VERIFIERS
from machine_base import AMOUNT, ANYONE, LENDER, OWNER, SMALL, SPAN, Machine

from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.ledger import transactions
from farflung.ledger.table_rows import ChannelRow, channel_key


class MoneyRules(Machine):
    """Transfers, nodes, keys and channels."""

    @rule(key=ANYONE, to=ANYONE, amount=AMOUNT, fee=st.sampled_from((0, 0, 3, 10**7)), span=SPAN)
    def transfer(self, key: SigningKey, to: SigningKey, amount: int, fee: int, span: int) -> None:
        self.ask(key, transactions.Transfer(to.public, amount), fee=fee, expires=self.at(span) if fee else 0)

    @rule(key=LENDER, stake=AMOUNT, span=SPAN, price=st.sampled_from((5, 5, 5, 1, 6)))
    def register(self, key: SigningKey, stake: int, span: int, price: int) -> None:
        self.ask(key, self.world.register(stake, self.at(span), price))

    @rule(key=LENDER)
    def leave(self, key: SigningKey) -> None:
        self.ask(key, transactions.NodeLeave())

    @rule(
        key=ANYONE,
        node=st.sampled_from((*ACTORS, STRANGER, None)),
        epoch=st.integers(0, 4) | st.sampled_from((2**32 - 1, 2**32)),
        expires=st.sampled_from((0, 1, 253_402_300_799, 253_402_300_800)),
        until=st.sampled_from((0, 7, 253_402_300_800)),
    )
    def certify(self, key: SigningKey, node: SigningKey | None, epoch: int, expires: int, until: int) -> None:
        public = PeerId(bytes(32)) if node is None else node.public
        self.ask(key, transactions.KeyCertify(public, epoch, expires, until))

    @rule(key=ANYONE, epochs=st.lists(st.integers(0, 4) | st.just(2**32 - 1), min_size=1, max_size=2))
    def revoke(self, key: SigningKey, epochs: list[int]) -> None:
        self.ask(key, *(transactions.KeyRevoke(epoch) for epoch in epochs))

    @rule(
        payer=OWNER,
        relay=st.sampled_from((NODES[2], NODES[2], REQUESTER, VERIFIERS[0])),
        amount=AMOUNT,
        price=st.sampled_from((1 << 30, 1 << 30, 0, 12_345)),
        span=SPAN,
    )
    def open_channel(self, payer: SigningKey, relay: SigningKey, amount: int, price: int, span: int) -> None:
        self.ask(payer, self.world.open_channel(relay, amount, price, self.at(span)))

    @rule(
        payer=OWNER,
        relay=st.sampled_from((NODES[2], NODES[2], VERIFIERS[0])),
        serials=st.lists(st.integers(0, 3), min_size=1, max_size=2),
        opening=st.sampled_from((1, 1, 1, 2)),
        said=st.lists(st.tuples(st.sampled_from(NODES), SMALL, SMALL), max_size=3),
        terms=st.sampled_from(((1 << 40, 0), (1 << 40, 3), (10, 0), (10, 9), ((1 << 50) + 1, 0), (10, (1 << 50) + 1))),
        signer=st.sampled_from((None, None, None, STRANGER)),
    )
    def claim(
        self,
        payer: SigningKey,
        relay: SigningKey,
        serials: list[int],
        opening: int,
        said: list[tuple[SigningKey, int, int]],
        terms: tuple[int, int],
        signer: SigningKey | None,
    ) -> None:
        fields = {"payer": payer, "relay": relay, "signer": signer, "opening": opening}
        quota, lost = terms
        passages = [self.world.passage(serial, *said, **fields, quota=quota, lost=lost) for serial in serials]
        self.ask(relay, transactions.ChannelClaim(payer.public, tuple(passages)))

    @rule(stage=st.integers(1, 3), sizes=st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=3))
    def carried(self, stage: int, sizes: list[tuple[int, int]]) -> None:
        """A channel that is mostly opened, claimed from and closed."""
        relay, payer = NODES[2], REQUESTER
        self.ask(payer, self.world.open_channel(relay, 90, 1 << 30, self.at(30_000)))
        self.seal(1000)
        row = self.world.state.find(ChannelRow, channel_key(payer.public, relay.public))
        if row is None or not row.is_open:
            return
        terms = {"payer": payer, "relay": relay, "opening": row.opening}
        for number, (sent, got) in enumerate(sizes):
            said = ((NODES[0], sent, got), (NODES[1], got, sent))
            passage = self.world.passage(row.serial + number, *said, **terms)
            self.ask(relay, transactions.ChannelClaim(payer.public, (passage,)))
        if stage == 3:
            self.ask(relay, transactions.ChannelClose(payer.public))

    @rule(payer=OWNER, relay=st.sampled_from((NODES[2], NODES[2], REQUESTER)))
    def close_channel(self, payer: SigningKey, relay: SigningKey) -> None:
        self.ask(relay, transactions.ChannelClose(payer.public))
