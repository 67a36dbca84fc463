"""A coordinator with honest members and one that says what it likes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from attack_world import (
    JOB_KEY,
    LAYOUT,
    MEMBERS,
    REQUESTER,
    SPEC,
    TERMS,
    Party,
    Worker,
    initial,
    start_order,
)

from farflung.app import objects, wire
from farflung.app.coordinator import Archive, Coordinator, RunLog
from farflung.app.journal import Journal
from farflung.app.tenancy import Tenancy
from farflung.app.vault import Vault
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError
from farflung.core.events import AnyEvent, Left, RoundClosed
from farflung.core.ids import PeerId
from farflung.net.io.connection import Connection
from farflung.train import rounds
from farflung.train.roundlog import Accepted, Closed, Committed, Contribution, Opened, payload_hash
from farflung.verify.commitments import commit, nonce_of

replace = msgspec.structs.replace

EVE, HONEST = MEMBERS[2], MEMBERS[:2]
ROUND = 1  # in which the hostile member attacks; round 0 it does as it must
ORDERS: dict[str, type[Any]] = {
    wire.TRAIN: wire.TrainRound,
    wire.REVEAL: wire.RevealRound,
    wire.MERGE: wire.MergeRound,
}


class Member(Party):
    """An honest member: the real tenancy, with a worker that needs no torch."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        super().__init__(key, folder / "store")
        self.worker = Worker(key)
        vault = Vault(folder / "private", key)
        self.tenancy = Tenancy(key, TERMS, self.disk, vault, self.dial, dataset_bytes=10**6)
        self.shelf = self.tenancy.shelf
        self.places: dict[PeerId, wire.Address] = {}

    async def dial(self, peer: PeerId) -> Connection:
        place = self.places[peer]
        return await self.endpoint.dial(peer, place.host, place.port)

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method not in ORDERS:
            return await super().handle(connection, method, body)
        return encode(await self.obey(connection, method, decode(body, ORDERS[method], limits.CONTROL_BYTES)))

    async def obey(self, connection: Connection, method: str, order: Any) -> Any:
        """The reply to an order of the coordinator."""
        verb: dict[str, Callable[[Any], Awaitable[Any]]] = {
            wire.TRAIN: self.tenancy.train,
            wire.REVEAL: self.tenancy.reveal,
            wire.MERGE: self.tenancy.merge,
        }
        return await verb[method](order)


Twist = Callable[["Hostile", Any, Any], Any]


class Hostile(Member):
    """Does as it must, then changes what it says: `twists[method](member, order, honest reply)` in round ROUND."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        super().__init__(key, folder)
        self.twists: dict[str, Twist] = {}
        self.seen: dict[PeerId, Any] = {}  # what others said in the round before it answers
        self.connection: Connection | None = None
        self.withholds = False

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method == objects.CHUNK and self.withholds:
            raise PolicyError("FF-APP-042", "never")
        return await super().handle(connection, method, body)

    async def obey(self, connection: Connection, method: str, order: Any) -> Any:
        self.connection = connection
        said = await super().obey(connection, method, order)
        if order.round == ROUND and method in self.twists:
            said = self.twists[method](self, order, said)
        return said

    def promise(self, said: wire.Promise, payload: bytes, weight: int = SPEC.round_tokens) -> wire.Promise:
        """A well-signed promise of any payload."""
        made = commit(EVE, TERMS.id, ROUND, payload_hash(payload), 0)
        return replace(said, commitment=self.committed(payload, weight) if weight >= 0 else made)

    def committed(self, payload: bytes, weight: int) -> Any:
        return commit(EVE, TERMS.id, ROUND, payload_hash(payload), weight)

    def opened(self, shown: wire.Shown, payload: bytes, weight: int = SPEC.round_tokens) -> wire.Shown:
        """The opening of such a promise; the payload lies in this member's store."""
        manifest, nonce = self.put(payload), nonce_of(EVE, TERMS.id, ROUND)
        told = Contribution(EVE.public, weight, payload_hash(payload), manifest.id, nonce)
        return wire.Shown(wire.Share(told, manifest, shown.share.replica))


class Run:
    """A coordinator with two honest members and a hostile one."""

    def __init__(self, folder: Path) -> None:
        self.home = Party(REQUESTER, folder / "home")
        self.honest = [Member(key, folder / str(i)) for i, key in enumerate(HONEST)]
        self.eve = Hostile(EVE, folder / "eve")
        self.members: list[Member] = [*self.honest, self.eve]
        self.events: list[AnyEvent] = []
        self.log_path = folder / "rounds.log"
        (folder / "snapshots").mkdir()
        self.log = RunLog(self.log_path, REQUESTER)
        self.archive = Archive(self.home.disk, folder / "snapshots", JOB_KEY, REQUESTER.public)
        self.journal = Journal(folder / "events.jsonl", 0.0, [lambda event, _: self.events.append(event)])
        self.fresh = rounds.State(TERMS.id, SPEC.rounds, SPEC.sync.steps, 0, SPEC.round_tokens, ())
        self.on_closed: Callable[[int], None] = lambda _round: None

    async def go(self) -> Coordinator:
        """The whole run."""
        parties = [self.home, *self.members]
        for party in parties:
            await party.endpoint.start()
        try:
            places = {p.key.public: p.address for p in parties}
            for index, member in enumerate(self.members):
                member.places = places
                order = start_order(self.home, index, tuple(places.values()), initial())
                await member.tenancy.start(order, member.worker, REQUESTER.public)
            return await self._coordinate(places)
        finally:
            for party in parties:
                await party.endpoint.close()
            self.log.close()
            self.journal.close()

    async def _coordinate(self, places: dict[PeerId, wire.Address]) -> Coordinator:
        self.log.write(Opened(TERMS.id, REQUESTER.public, TERMS.initial_root, SPEC.rounds))
        members = tuple(m.key.public for m in self.members)
        state = replace(rounds.replay(self.fresh, self.log.records), members=members)

        async def dial(peer: PeerId) -> Connection:
            return await self.home.endpoint.dial(peer, places[peer].host, places[peer].port)

        def closed(record: Closed, *_: Any) -> None:
            self.on_closed(record.round)

        coordinator = Coordinator(
            REQUESTER, TERMS, self.log, self.archive, state, initial(), dial, self.journal, closed
        )
        finished, public = await coordinator.run()
        assert (finished.rounds, finished.reason) == (SPEC.rounds, rounds.REASON_COMPLETE)
        assert finished.root == public.root(LAYOUT)
        return coordinator

    def check(self, reason: str, *, accepted_last: bool) -> None:
        """Out with this reason, once; the honest ones finished; the log replays; nothing of it was taken after."""
        left = [event for event in self.events if isinstance(event, Left)]
        assert [event.peer for event in left] == [EVE.public.hex()]
        assert reason in left[0].reason
        assert len([e for e in self.events if isinstance(e, RoundClosed)]) == SPEC.rounds
        again = RunLog(self.log_path, REQUESTER)
        again.close()
        replayed = rounds.replay(self.fresh, again.records)
        assert replayed.phase is rounds.Phase.DONE
        for member in self.honest:
            assert member.worker.state.root(LAYOUT) == replayed.root
        honest = {key.public for key in HONEST}
        for record in again.records:
            if isinstance(record, Accepted):
                is_in = record.round < ROUND or (record.round == ROUND and accepted_last)
                assert {c.peer for c in record.contributions} == (honest | {EVE.public} if is_in else honest)
            if isinstance(record, Closed):
                assert {peer for peer, _ in record.signatures} >= honest
            if isinstance(record, Committed) and record.round > ROUND:
                assert {c.peer for c in record.commitments} == honest
