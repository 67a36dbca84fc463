"""Random exclusions: nodes that report themselves, appeal, and are heard."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from ledger_world import BOND, NODES, ROOTS, STRANGER, VALIDATOR, VERIFIERS
from machine_base import LENDER, Machine

from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.exclusions import Appeal, AppealVote, ExclusionRow, HostTampered
from farflung.ledger.table_rows import LeaseRow

BOARD = st.sampled_from((VALIDATOR, VALIDATOR, STRANGER, NODES[2], VERIFIERS[0]))
NAMED = st.sampled_from((ROOTS[1], ROOTS[2], ROOTS[1], ZERO_HASH))


class OutRules(Machine):
    """Who is out, and who is let in again."""

    @rule(key=LENDER, place=st.integers(0, 3), evidence=NAMED)
    def tampered(self, key: SigningKey, place: int, evidence: Hash) -> None:
        """Mostly of a job in which it has a lease that is open."""
        held = [row.job for row in self.world.state.rows(LeaseRow) if row.node == key.public and row.is_open]
        self.ask(key, HostTampered(held[place % len(held)] if held else ROOTS[5], evidence))

    @rule(key=LENDER, place=st.integers(0, 3), bond=st.sampled_from((BOND, BOND - 1, 99, 10**7)), named=NAMED)
    def appeal(self, key: SigningKey, place: int, bond: int, named: Hash) -> None:
        self.ask(self._excluded(place, key), Appeal(bond, named))

    @rule(key=LENDER, place=st.integers(0, 3), board=st.lists(BOARD, min_size=1, max_size=3), guilty=st.booleans())
    def hear(self, key: SigningKey, place: int, board: list[SigningKey], guilty: bool) -> None:
        for juror in board:
            self.ask(juror, AppealVote(self._excluded(place, key).public, guilty))

    @rule(place=st.integers(0, 3), heard=st.integers(0, 3), guilty=st.booleans())
    def appealed(self, place: int, heard: int, guilty: bool) -> None:
        """An appeal that mostly comes in, and up to three jurors."""
        self.seal(1000)
        key = self._excluded(place, NODES[0])
        self.ask(key, Appeal(BOND + place, ROOTS[3]))
        self.seal(1000)
        for juror in (VALIDATOR, STRANGER, NODES[2])[:heard]:
            self.ask(juror, AppealVote(key.public, guilty))
        self.seal(1000)

    def _excluded(self, place: int, other: SigningKey) -> SigningKey:
        """One of those that are out; another one where nobody is."""
        out = {row.node for row in self.world.state.rows(ExclusionRow) if row.until > self.world.state.time}
        keys = [key for key in (*NODES, *VERIFIERS) if key.public in out]
        return keys[place % len(keys)] if keys else other
