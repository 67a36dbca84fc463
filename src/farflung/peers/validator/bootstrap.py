"""Starts a validator that is new or was away from a snapshot, where blocks are pruned or too many."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.io.state_sync import Ask, StateSyncResult, join
from farflung.ledger.params import DAY_MS
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import serve_nothing
from farflung.peers.ledger_client.connect import reaches_of
from farflung.peers.ledger_client.quorum_read import QuorumReader
from farflung.peers.validator.service import ValidatorConfig

Places = Mapping[PeerId, tuple[str, int]]


@dataclass(frozen=True)
class JoinStatus:
    """Who was asked for a snapshot, what came of it, and what was wrong with whom.

    `stale_days`: for how long this validator knew nothing newer, where that is longer than stakes stay bonded; else 0.
    """

    places: Places
    joined: StateSyncResult
    stale_days: int = 0

    @property
    def height(self) -> int:
        """That of the snapshot which was taken; 0: none."""
        return self.joined.height

    @property
    def silent(self) -> int:
        """How many of them failed, and gave nothing."""
        return len({place for place, _ in self.joined.faults})

    def lines(self) -> Iterator[str]:
        """For a person: each fault with its code and cause, and what to do where it matters."""
        asked = list(self.places.items())
        for place, error in self.joined.faults:
            peer, (host, port) = asked[place]
            cause = f" ({error.cause})" if error.cause else ""
            yield f"asked {peer.hex()[:12]} at {host}:{port}: {error.code} {error.message}{cause}"
        if self.height:
            yield f"took the snapshot of block {self.height}: every chunk is under a certified state root"
            if self.stale_days and self.joined.taken:
                yield (
                    f"beware: what this validator knew before is {self.stale_days} days old, and the stakes of that "
                    f"committee are free by now: it may have signed another history. Compare block {self.height} with "
                    f"somebody you trust (farflung ledger show): {self.joined.taken.id.hex()}"
                )
        elif self.joined.is_needed:
            yield from untaken(self).lines()
        elif asked and self.silent == len(asked):
            yield (
                f"none of {len(asked)} other validators answered: it begins from its own blocks, and "
                "meets them when they are there"
            )


def untaken(tidings: JoinStatus) -> FarflungError:
    """A snapshot was needed, and nobody gave one."""
    return NetworkError(
        "FF-APP-322",
        "this validator cannot catch up: nobody keeps the next block, and nobody gave a snapshot",
        cause=f"{len(tidings.places)} were asked, {tidings.silent} of them failed",
        hint="name more validators under [validators] in its file; it tries again by itself",
    )


def tidings_of(places: Places, joined: StateSyncResult, genesis: Genesis) -> JoinStatus:
    """The same for a person, with a warning where a committee is believed that has nothing to lose any more.

    Weak subjectivity (docs/protocol/sdbft.md): a ledger that counts blocks instead of time knows no such age.
    """
    slept = int(time.time() * 1000) - joined.own.time if genesis.time else 0
    is_stale = slept > genesis.params.unbonding_ms
    return JoinStatus(places, joined, max(1, slept // DAY_MS) if is_stale else 0)


@contextlib.asynccontextmanager
async def asking(places: Places) -> AsyncIterator[Sequence[Ask]]:
    """A question to each validator, under a key of this moment: what is asked takes no part in any committee."""
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, ByteCounter())
    panel = QuorumReader(reaches_of(((peer, *place) for peer, place in places.items()), endpoint))
    try:
        yield [partial(panel.call, number) for number in range(len(panel))]
    finally:
        await endpoint.close()


async def begin(setting: ValidatorConfig, places: Places) -> JoinStatus:
    """Before the validator's own files are open: puts a snapshot in their place where one is needed and given.

    That nobody answers, or that all lie, is no reason not to begin: they must not be able to prevent it. Raises
    RunError FF-LEDG-080 to -083 for the files.
    """
    async with asking(places) as asks:
        joined = await join(asks, setting.folder / "chain.db", setting.genesis)
    return tidings_of(places, joined, setting.genesis)
