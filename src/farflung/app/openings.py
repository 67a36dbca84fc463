"""What a provider opens of its own work when an audit is drawn: sealed states and Merkle paths, durable before shown.

The states at the borders of a segment lie in the worker's memory until its round is merged. A drawn segment is sealed
into the store at once, and what it opens to is kept with it, so that a provider that crashes afterwards opens
the same. What the segment ended with is shown only to a verifier that has committed to a result of its own (V2).
"""

from __future__ import annotations

from collections.abc import Callable

from farflung.app.vault import Vault
from farflung.app.wire import OpenSegment, RevealSegment, SegmentOpened, SegmentRevealed
from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest, seal
from farflung.train import messages
from farflung.train.trace import Trace
from farflung.verify.blind import is_blind
from farflung.verify.opening import needed

# Of a place (round, segment) and the round's trace, what the worker gave: before it is opened to anybody.
Retain = Callable[[tuple[int, int], Trace, messages.SegmentOpened], None]


class Opening(Wire, frozen=True):
    """One drawn segment, sealed: what is shown first, and what is shown to a verifier that has committed."""

    round: int
    segment: int
    opened: SegmentOpened
    revealed: SegmentRevealed


class DrawnSegments:
    """The drawn segments of one lease."""

    def __init__(
        self, key: SigningKey, job: Hash, segments: int, disk: Disk, vault: Vault, job_key: bytes
    ) -> None:
        self._key, self._job, self._segments = key, job, segments
        self._disk, self._vault, self._job_key = disk, vault, job_key
        self._known: dict[tuple[int, int], Opening] = {}

    def find(self, round: int, segment: int) -> Opening | None:
        """An opening that was made before, if it is still kept. Raises PolicyError FF-APP-084: no such segment."""
        if not (0 <= segment < self._segments and 0 <= round < limits.ROUNDS):
            raise _not_open(round, segment)
        known = self._known.get((round, segment))
        if known is None:
            try:
                data = self._vault.load(self._name(round, segment))
            except VerificationError:
                return None
            known = decode(data, Opening, limits.PIPE_BYTES) if data is not None else None
        if known is not None:
            self._known[round, segment] = known
        return known

    def make(
        self, round: int, segment: int, trace: Trace, before: Trace | None, states: messages.SegmentOpened
    ) -> SegmentOpened:
        """Seals the segment's states and keeps what they open to; durable on return. `before`: of the round before."""
        (start,) = trace.opened(segment)
        chained = before.opened(self._segments) if before is not None and segment == 0 else ()
        opened = SegmentOpened(start, self._seal(states.start), chained)
        revealed = SegmentRevealed(
            trace.opened(*needed(segment, self._segments)), self._seal(states.end), self._seal(states.last)
        )
        opening = Opening(round, segment, opened, revealed)
        self._vault.save(self._name(round, segment), encode(opening))
        self._known[round, segment] = opening
        return opened

    def repeat(self, request: OpenSegment) -> SegmentOpened:
        """What was opened already, for a verifier: were it to choose, its audit would not be blind for long."""
        return self._known_of(request).opened

    def _known_of(self, request: OpenSegment | RevealSegment) -> Opening:
        opening = self.find(request.round, request.segment)
        if opening is None:
            raise _not_open(request.round, request.segment)
        return opening

    def reveal(self, request: RevealSegment, verifiers: frozenset[PeerId]) -> SegmentRevealed:
        """What came out of a segment, for a verifier of the job that has committed to its own result."""
        said, node = request.blind, self._key.public
        opening = self._known_of(request)
        is_due = said.verifier in verifiers and is_blind(
            said, self._job, request.round, node, request.segment
        )
        if not is_due:
            raise PolicyError(
                "FF-APP-083",
                "no verifier of this job has committed to a result of this segment",
                cause="an audit is blind: the end of a segment is shown to who has trained it again",
                hint="send the verifier's signed commitment",
            )
        return opening.revealed

    def forget(self, keep_from: int) -> None:
        """Deletes what belongs to rounds before `keep_from`."""
        for name in self._vault.names():
            prefix, _, rest = name.partition("-audit-")
            if prefix != self._prefix or not rest or int(rest.split("-")[0]) >= keep_from:
                continue
            opening = self.find(*(int(part) for part in rest.split("-")))
            if opening is not None:
                self._drop(opening)
            self._vault.drop(name)
        self._known = {place: o for place, o in self._known.items() if place[0] >= keep_from}

    def _drop(self, opening: Opening) -> None:
        for manifest in (opening.opened.state, opening.revealed.end, opening.revealed.last):
            self._disk.delete(manifest.id)

    @property
    def _prefix(self) -> str:
        return self._job[:8].hex()

    def _name(self, round: int, segment: int) -> str:
        return f"{self._prefix}-audit-{round:06d}-{segment:03d}"

    def _seal(self, state: bytes) -> Manifest:
        manifest, chunks = seal(self._job_key, state)
        self._disk.put(manifest, chunks)
        return manifest


def _not_open(round: int, segment: int) -> PolicyError:
    return PolicyError("FF-APP-084", f"segment {segment} of round {round} is not open")
