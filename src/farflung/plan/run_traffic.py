"""Computes how many bytes a run sends, by kind, counted at the sockets as `watch` counts them (requirement T1).

With N providers, V verifiers, and p, d and s the bytes at the socket of a payload, the data set and the public state:

    sync     rounds x N x N p where payloads go from pair to pair (a member pushes its payload to one replica, N - 2
             members and the requester fetch it) or by way of one peer, rounds x N p where the relay copies them:
             as the exchange chooses from the lines (plan.exchange_paths); `sync_most` if it chooses otherwise
    join     N (d + s) + V d: verifiers get public states with their audits; of a large data set (plan.dataset_traffic)
             a root in place of d, and what rounds and audits lie in
    audit    what verifiers fetch of states (plan.audit_costs), and s for each verifier that has work in a round; s and
           N payloads in a round that is scored
    control  orders, promises, shares, Merkle paths, verdicts and the ledger: rounds, audits, and the start
             where the ledger has several validators, also what these send (plan.committee_traffic)
    relay    what of all this passes the relay; it is sent once more, by the relay

The yardstick is a ring all-reduce in bf16 (Patarasuk & Yuan 2009): 2 (N - 1) / N of the buffer per rank and step.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes
from farflung.job import proof_class
from farflung.job.spec import JobSpec
from farflung.plan import audit_costs
from farflung.plan.dataset_traffic import first_bytes, round_bytes
from farflung.plan.exchange_choice import ExchangeForecast, ExchangeWay
from farflung.plan.exchange_paths import HERE, RunLinks, foreseen, moved
from farflung.plan.state_vectors import (
    FLOAT,
    ExpectedLength,
    carried_vectors,
    inner_vectors,
    outer_vectors,
    payload_bytes,
)
from farflung.store.sealed_objects import chunk_count

TLS_RECORD: Final = 16 * limits.KIB  # plaintext of a full TLS 1.3 record (RFC 8446, section 5.1)
TLS_OVERHEAD: Final = 22  # its header, content type and tag
SEAL_OVERHEAD: Final = 16  # AES-256-GCM tag of one stored chunk
FRAME_HEAD: Final = 10  # of each frame of net.frames, one for 64 KiB
ASK_CHUNK: Final = 86  # the request for a stored chunk
FAN_HEAD: Final = 44  # of each frame of a group (net.multicast_frames), and its tag
FAN_PUSH: Final = 700  # manifest, begin and finish to a group, and a replica's word that it holds the object
PUSH: Final = 350  # what a push takes beyond a fetch: manifest, begin, finish, and three answers

# Bytes of control messages with frame and TLS record; hashes and keys take 34, signatures 66. Fitted to runs of 2 to 6
# providers, 1 to 3 verifiers, 2 to 12 rounds.
SHARE: Final = 300  # one accepted contribution with its manifest, in the list that every member merges
# Orders to train, reveal, merge, and their answers but for lists; what a member reads of job and lease on the ledger.
MEMBER_ROUND: Final = 2_750
LOSS: Final = 9  # a step's loss in a promise, and twice in the statistics that an audit opens
# One round on the ledger: questions, transactions, what is drawn, their blocks when blocks are read.
LEDGER_ROUND: Final = 10_000
AUDIT: Final = 4_700  # open, order, blind commitment, reveal, judgement, verdict, with their Merkle paths
# Of a manifest; a manifest of an opened state travels twice, by way of the coordinator.
CHUNK_HASH: Final = 34
DIAL: Final = 2_200  # a pair of peers that talk: a TLS handshake, in which both show a certificate
# More, by way of a relay: a ticket each, the summons, other paths that are tried, a connection for bulk.
CIRCUIT: Final = 10_900
# More of a pair whose lines are their own: other paths are tried, and bulk has connections of its own
# (net.io.parallel_connections).
PAIR_APART: Final = 38_000
# A second of a node on a line of its own: it shows itself at its relays, measures its paths and reads withdrawn keys.
NODE_SECOND: Final = 1_000
# a node, requester or relay asks every two seconds whose keys were withdrawn (peers.ledger_client.key_registry)
KEYS_SECOND: Final = 40
KEYS_OTHERS: Final = 4  # who asks beside nodes
HIDDEN_SECOND: Final = 170  # of a hidden node: what it and those that it talks to sign for its relay, every 10 s
START_NODE: Final = 10_300  # offer, lease, ledger transactions and receipts of one node
START_OTHERS: Final = 22_400  # escrow, match, settlement and the export
TERMS: Final = 700  # a job's terms without layout and tolerances, sent to every node
TOLERANCE: Final = 5  # one limit of a tensor in them


class RunTraffic(msgspec.Struct, frozen=True):
    """Bytes that all processes of a run send together, by kind; `ring` is the yardstick, never sent."""

    payload: Bytes  # one payload, modelled; the mean where rounds differ
    forecast: ExchangeForecast  # how a round's payloads go
    up_round: Bytes  # that the busiest member's line carries of them
    down_round: Bytes
    sync_round: Bytes
    sync_relayed: Bytes  # of all rounds: what the relay sends of it
    sync_most: Bytes  # of all rounds, whatever they choose
    control_round: Bytes
    state: Bytes  # one public state
    sync: Bytes
    join: Bytes
    control: Bytes
    audit: Bytes
    relay: Bytes  # sent by the relay for others: ciphertext that is counted above once already
    ring: Bytes
    talk: float = 0.0  # of control, in a second in which nothing is done

    @property
    def relay_most(self) -> Bytes:
        """What the relay sends if it copies all payloads."""
        copied = self.sync_most if self.relay else 0
        return Bytes(self.relay - self.sync_relayed + max(self.sync_relayed, copied))

    @property
    def total(self) -> Bytes:
        """All kinds together."""
        return Bytes(self.sync + self.join + self.control + self.audit + self.relay)


def on_wire(size: int) -> Bytes:
    """Bytes at the sockets to fetch a stored object of `size` bytes: requests, chunk tags, frames and TLS records."""
    whole, rest = divmod(size, limits.CHUNK_BYTES)
    return Bytes(whole * _chunk(limits.CHUNK_BYTES) + (_chunk(rest) if rest else 0))


def _chunk(size: int) -> int:
    sealed = size + SEAL_OVERHEAD
    framed = sealed + FRAME_HEAD * -(-sealed // limits.FRAME_BYTES)
    return ASK_CHUNK + framed + TLS_OVERHEAD * -(-framed // TLS_RECORD)


def ring_bytes(parameters: int, steps: int, members: int, element: int = 2) -> Bytes:
    """Bytes that a ring all-reduce of all gradients sends in `steps` steps, all ranks together."""
    return Bytes(round(steps * members * ring_each(parameters, members, element)))


def ring_each(parameters: int, members: int, element: int = 2) -> float:
    """Bytes that each of `members` ranks sends, and receives, for one ring all-reduce: 2 (N - 1) / N of the buffer."""
    return ring_share(members) * float(parameters * element)


def ring_share(ranks: int) -> float:
    """Of a buffer that is summed, the part that each rank sends, and receives: 2 (n - 1) / n (Patarasuk & Yuan
    2009).
    """
    return 2 * (ranks - 1) / ranks


def snapshot_bytes(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """Length of the public state: float32 parameters, and what the outer optimizer remembers."""
    return Bytes(FLOAT * layout.size * (1 + outer_vectors(spec.sync)))


def control_bytes(members: int, steps: int = 0) -> Bytes:
    """Control messages of one round of `steps` steps, but for audits: each member's own, and everybody's list of all:
    N (MEMBER_ROUND + steps LOSS) + N x N SHARE + LEDGER_ROUND.
    """
    return Bytes(members * (MEMBER_ROUND + steps * LOSS + members * SHARE) + LEDGER_ROUND)


def traffic(
    spec: JobSpec, layout: TensorLayout, dataset_bytes: int, codec: ExpectedLength, network: RunLinks = HERE
) -> RunTraffic:
    """The run's bytes by kind; audits as the draw brings them on the average to honest members."""
    members, drawn = spec.network.providers, audit_costs.expected(spec)
    verifiers = spec.verifiers
    payload = math.ceil(payload_bytes(spec.sync, layout, codec))
    forecast = foreseen(spec, network, payload)
    each = _fanned(payload) if forecast.way is ExchangeWay.FAN else on_wire(payload)
    goes = moved(members, spec.hidden, forecast)
    push = 0 if forecast.way is ExchangeWay.FAN else PUSH
    sync_round = round(goes.sent * each) + members * push
    data, state = on_wire(first_bytes(spec, dataset_bytes)), on_wire(snapshot_bytes(spec, layout))
    # of a large data set: each member's rounds, those that are audited, and one that each node tries
    rounds_moved = members * spec.rounds + drawn.count + (members + verifiers) * (not proof_class.known(spec))
    pieces = round(rounds_moved * on_wire(round_bytes(spec, dataset_bytes)))
    from_peers = audit_costs.moved(spec, drawn, lambda vectors: on_wire(FLOAT * layout.size * vectors))
    to_scorers = float(audit_costs.scores(spec).rounds) * (state + members * on_wire(payload))
    control_round = control_bytes(members, spec.sync.steps)
    control = (
        spec.rounds * control_round
        + drawn.count * _audit_control(spec, layout)
        + _start_control(spec, layout, verifiers)
    )
    sync_relayed = Bytes(round(spec.rounds * goes.relayed * (sync_round / goes.sent)))
    most = round(goes.most * on_wire(payload)) + members * PUSH
    return RunTraffic(
        payload=Bytes(payload),
        forecast=forecast,
        up_round=Bytes(round(goes.up * each)),
        down_round=Bytes(round(goes.down * each)),
        sync_round=Bytes(sync_round),
        sync_relayed=sync_relayed,
        sync_most=Bytes(spec.rounds * max(most, sync_round)),
        control_round=control_round,
        state=Bytes(state),
        sync=Bytes(spec.rounds * sync_round),
        join=Bytes(members * (data + state) + verifiers * data + pieces),
        control=Bytes(round(control)),
        audit=Bytes(round(from_peers + drawn.asked * state + to_scorers)),
        relay=_relayed(spec, sync_relayed, members * (data + state) + pieces + from_peers),
        ring=ring_bytes(layout.size, spec.steps, members),
    )


def _fanned(size: int) -> int:
    """Bytes at its maker's socket to send a stored object of `size` bytes to a group."""
    return size + FAN_HEAD * -(-size // limits.FAN_FRAME_BYTES) + FAN_PUSH


def _audit_control(spec: JobSpec, layout: TensorLayout) -> int:
    """Messages of one audit: AUDIT, the statistics twice, and the manifests of public state, start, end and last."""
    state = FLOAT * layout.size
    held, carried = 1 + inner_vectors(spec), carried_vectors(spec.sync)
    opened = sum(chunk_count(state * vectors) for vectors in (held + carried, held, 1 + carried))
    hashes = chunk_count(snapshot_bytes(spec, layout)) + 2 * opened
    return AUDIT + 2 * LOSS * spec.sync.steps + CHUNK_HASH * hashes


def _start_control(spec: JobSpec, layout: TensorLayout, verifiers: int) -> int:
    """What is said before the first round and after the last.

    Pairs that talk: ledger and requester with all n = N + V nodes, with each other and with the supervisor, members
    with each other and with verifiers.
    """
    members, hidden = spec.network.providers, spec.hidden
    nodes = members + verifiers
    limits_of = TOLERANCE * len(layout.tensors) * (1 + inner_vectors(spec))
    terms = TERMS + len(encode(layout)) + (limits_of if verifiers else 0)
    pairs = 2 * nodes + 2 + members * (members - 1) // 2 + verifiers * members
    circuits = hidden * (members + verifiers) * CIRCUIT
    return START_OTHERS + nodes * (START_NODE + terms) + pairs * DIAL + circuits


def lasting(traffic: RunTraffic, spec: JobSpec, seconds: float, *, is_apart: bool) -> RunTraffic:
    """The same with what is said as time goes by: withdrawn keys are asked for, relays' receipts signed.

    `is_apart`: members are on lines of their own, and what stands there talks, too; fitted to three runs of `--lab`, of
    3 and 7 nodes, and 13 to 231 s.
    """
    members, nodes = spec.network.providers, spec.network.providers + spec.verifiers
    talk, met = float(KEYS_SECOND * (nodes + KEYS_OTHERS) + HIDDEN_SECOND * spec.hidden), 0
    if is_apart:
        pairs = nodes + members * (members - 1) // 2 + spec.verifiers * members
        talk, met = talk + nodes * NODE_SECOND, pairs * PAIR_APART
    control = Bytes(traffic.control + round(met + talk * seconds))
    return msgspec.structs.replace(traffic, control=control, talk=talk)


def all_relayed(traffic: RunTraffic) -> RunTraffic:
    """The same, where every member and every verifier is reached through the relay only: all but control passes it."""
    return msgspec.structs.replace(traffic, relay=Bytes(traffic.sync_relayed + traffic.join + traffic.audit))


def _relayed(spec: JobSpec, sync: int, others: float) -> Bytes:
    """Bytes of the h hidden of N members that pass the relay: of payloads as they go (plan.exchange_paths), and
    all of their data, public state and opened states, because requester and verifiers dial them there.
    """
    return Bytes(round(sync + others * spec.hidden / spec.network.providers))
