"""How many bytes a run sends, by kind, counted at the sockets as `watch` counts them (requirement T1).

Payloads travel as docs/architecture says: a member pushes its payload to one replica, the other members and the
requester fetch it. A payload is thus sent N times (1 push, N - 2 other members, 1 requester), N payloads a round.
The yardstick is a ring all-reduce in bf16 (Patarasuk & Yuan 2009): 2 (N - 1) / N of the buffer per rank and step.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import msgspec

from farflung.core import limits
from farflung.core.layout import Layout
from farflung.core.units import Bytes
from farflung.job.spec import JobSpec

TLS_RECORD: Final = 16 * limits.KIB  # plaintext of a full TLS 1.3 record (RFC 8446, section 5.1)
TLS_OVERHEAD: Final = 22  # its header, content type and tag
SEAL_OVERHEAD: Final = 16  # AES-256-GCM tag of one stored chunk

MESSAGE: Final = 420  # one signed control message with frame and TLS record: ids, hashes, a signature
PART: Final = 90  # one member's entry in a message that lists all members
MEMBER_MESSAGES: Final = (
    5  # per member and round: train, reveal, replica, merge, and its share of the ledger's
)
DIAL: Final = 600  # what one more pair of peers that talk adds: a handshake, unless one stands already
START_MEMBER: Final = 15_200  # handshakes, offer, lease, terms, manifests and transactions of one member


class Codec(Protocol):
    """What a plan needs to know of a payload format: both in bytes of one encoded payload."""

    def expect(self, layout: Layout) -> float:
        """Modelled length."""
        ...

    def bound(self, layout: Layout) -> int:
        """Exact upper limit."""
        ...


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that all processes of a run send together, by kind; `ring` is the yardstick, never sent."""

    payload: Bytes  # one payload, modelled
    payload_bound: Bytes  # one payload, at most
    sync_round: Bytes
    control_round: Bytes
    sync: Bytes
    join: Bytes
    control: Bytes
    audit: Bytes
    ring: Bytes

    @property
    def total(self) -> Bytes:
        """All kinds together."""
        return Bytes(self.sync + self.join + self.control + self.audit)


def on_wire(size: int) -> Bytes:
    """Bytes at the socket for `size` bytes of a stored object: chunk tags and TLS records added."""
    sealed = size + SEAL_OVERHEAD * -(-size // limits.CHUNK_BYTES)
    return Bytes(sealed + TLS_OVERHEAD * -(-sealed // TLS_RECORD))


def ring_bytes(parameters: int, steps: int, members: int, element: int = 2) -> Bytes:
    """Bytes that a ring all-reduce of all gradients sends in `steps` steps, all ranks together."""
    return Bytes(steps * 2 * (members - 1) * parameters * element)


def snapshot_bytes(spec: JobSpec, layout: Layout) -> Bytes:
    """Length of the public state: float32 parameters, and momentum where the outer optimizer has one."""
    sections = 2 if spec.sync.outer_momentum > 0 else 1
    return Bytes(4 * layout.size * sections)


def control_bytes(members: int) -> Bytes:
    """Control messages of one round (an estimate): each member's own, and lists of all members to all."""
    return Bytes(members * (MEMBER_MESSAGES * MESSAGE + members * PART))


def traffic(spec: JobSpec, layout: Layout, dataset_bytes: int, codec: Codec) -> Traffic:
    """The run's bytes by kind. `audit` is 0 as long as commitments travel with the control messages."""
    members = spec.network.providers
    payload, bound = math.ceil(codec.expect(layout)), codec.bound(layout)
    sync_round = members * members * on_wire(payload)
    control_round = control_bytes(members)
    start = members * START_MEMBER + members * (members + 1) // 2 * DIAL
    return Traffic(
        payload=Bytes(payload),
        payload_bound=Bytes(bound),
        sync_round=Bytes(sync_round),
        control_round=control_round,
        sync=Bytes(spec.rounds * sync_round),
        join=Bytes(members * (on_wire(dataset_bytes) + on_wire(snapshot_bytes(spec, layout)))),
        control=Bytes(spec.rounds * control_round + start),
        audit=Bytes(0),
        ring=ring_bytes(layout.size, spec.steps, members),
    )
