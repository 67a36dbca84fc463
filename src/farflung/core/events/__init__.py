"""Defines the events of a run as frozen structs.

Screens, JSON, reports and the event log are renderings of these alone.

Events are for people and machines that watch; they enter no root. `at` is seconds since the run was created.
FORMAT counts what readers must know: fields and events may be added under one number, none is removed or changed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core.events.base import Event as Event
from farflung.core.events.disputes import DisputeEndEvent as DisputeEndEvent
from farflung.core.events.disputes import DisputeStageEvent as DisputeStageEvent
from farflung.core.events.paths import PathCountsEvent as PathCountsEvent
from farflung.core.events.paths import RelayPaymentEvent as RelayPaymentEvent
from farflung.core.events.paths import SimulatedHomeEvent as SimulatedHomeEvent
from farflung.core.events.plan import FileCount as FileCount
from farflung.core.events.plan import PlanComparisonEvent as PlanComparisonEvent
from farflung.core.events.plan import PlanEvent as PlanEvent
from farflung.core.events.work_class import JobClassEvent as JobClassEvent
from farflung.core.events.work_class import LossProbeCounts as LossProbeCounts
from farflung.core.events.work_class import LossScoreEvent as LossScoreEvent

FORMAT: Final = 2  # 1: money in micro-credits


class RunStartEvent(Event, frozen=True, tag="began"):
    """A session of a run starts. `format` is FORMAT; versions as packages name them.

    `network`: others' network that it runs on, as its requester calls it; empty: one of its own on this computer.
    """

    run: str
    name: str
    seed: int
    version: str
    python: str
    torch: str
    format: int = FORMAT
    network: str = ""


class ProcessStartEvent(Event, frozen=True, tag="process"):
    """A process of the local network is up."""

    role: str
    name: str
    pid: int
    peer: str


class ProviderMatchEvent(Event, frozen=True, tag="matched"):
    """Providers were chosen from the offers on the ledger."""

    peers: tuple[str, ...]
    offers: int
    unit_price: int


class EscrowEvent(Event, frozen=True, tag="funded"):
    """The job's money is in escrow."""

    job: str
    escrow: int
    stakes: int


class ValidatorKillEvent(Event, frozen=True, tag="validator-killed"):
    """One of several validators was ended after `round`, on purpose: to show that the others go on without it."""

    name: str
    round: int


class ChainComparisonEvent(Event, frozen=True, tag="chains-compared"):
    """So many validators hold one chain of `blocks` blocks; the one that is behind most has `least` of them."""

    validators: int
    blocks: int
    least: int


class LineageEvent(Event, frozen=True, tag="stands-on"):
    """The run begins with what the finished run `run` came to, which was proved before: `merges` recomputed, so many
    `signatures` checked. `jobs`: of that run and of those behind it, nearest first; `root`: of its final state.
    """

    run: str
    jobs: tuple[str, ...]
    root: str
    rounds: int
    merges: int
    signatures: int
    seconds: float


class PeerJoinEvent(Event, frozen=True, tag="joined"):
    """A peer holds the public state of a round and can be counted."""

    peer: str
    round: int
    replayed: int
    seconds: float


class RoundStartEvent(Event, frozen=True, tag="opened"):
    """The members of a round are asked to train. `waited`: seconds since the round before closed, for its audits."""

    round: int
    rounds: int
    peers: tuple[str, ...]
    waited: float


class ArrivalEvent(Event, frozen=True, tag="arrived"):
    """What a member owes to one phase of a round has come, `seconds` after the round was opened.

    `phase`: train (its commitment), reveal (its payload is here, replicated and checked), merge (its signed root).
    """

    round: int
    peer: str
    phase: str
    seconds: float


class SkippedMemberEvent(Event, frozen=True, tag="passed-over"):
    """A phase was closed `seconds` after its round was opened, without a member: it takes part in the next round."""

    round: int
    peer: str
    phase: str
    seconds: float


class RoundEndEvent(Event, frozen=True, tag="round"):
    """All accepted contributions of a round are merged, and all peers agree on its root."""

    round: int
    rounds: int
    peers: int
    loss: float
    tokens: int
    root: str
    waited_for: str
    seconds: float
    train_seconds: float
    sync_bytes: int
    way: str = ""  # how payloads came to everybody; empty: not told
    way_predicted: float = 0.0  # seconds of that, from what is known of the lines
    way_taken: float = 0.0
    payload_bytes: int = 0  # of one contribution, on the average; 0: not told
    clipped: tuple[str, ...] = ()  # peers of whose contributions the merge took away a part, and
    clipped_shares: tuple[float, ...] = ()  # what share of the length of each


class EvaluationEvent(Event, frozen=True, tag="evaluated"):
    """Validation loss of the public state of a round, nats per token."""

    round: int
    loss: float
    tokens: int


class ReexecutionEvent(Event, frozen=True, tag="reexecuted"):
    """After a crash a peer had to compute a round's contribution again."""

    peer: str
    round: int


class RunResumeEvent(Event, frozen=True, tag="resumed"):
    """A run goes on from its log."""

    round: int
    session: int


class TrafficEvent(Event, frozen=True, tag="traffic"):
    """Bytes that one process sent so far in this session, at its sockets, by kind; and received to agree."""

    session: int
    process: str
    sync: int
    audit: int
    join: int
    control: int
    relay: int = 0  # ciphertext of others that this process forwarded
    received: int = 0


class ProcessUsageEvent(Event, frozen=True, tag="usage"):
    """What one process took: peak resident memory and processor time."""

    process: str
    peak_bytes: int
    cpu_seconds: float


class SandboxEvent(Event, frozen=True, tag="sandbox"):
    """The tier in which workers run here, and what it does not stop."""

    tier: str
    gaps: tuple[str, ...]


class AuditDrawEvent(Event, frozen=True, tag="drawn"):
    """After the commitments of a round: whose work will be repeated. `flagged`: suspicion chose it, not the draw."""

    round: int
    peer: str
    segment: int
    flagged: str = ""


class AuditEndEvent(Event, frozen=True, tag="audit"):
    """One audit is over. `finding`: holds, unpaid, false, withheld; `excess`: distance in tolerances."""

    round: int
    peer: str
    segment: int
    verifiers: tuple[str, ...]
    finding: str
    excess: float
    tokens: int
    seconds: float


class CanaryEndEvent(Event, frozen=True, tag="canary"):
    """A verifier was shown a segment of `peer` that is known to be false. `tokens`: what it is paid for it."""

    round: int
    peer: str
    segment: int
    verifier: str
    finding: str
    tokens: int


class PerjuryEvent(Event, frozen=True, tag="perjured"):
    """A verifier said that a false segment of `peer` holds, and lost its stake to it. Money in pico-credits."""

    verifier: str
    round: int
    peer: str
    slashed: int
    bounty: int
    burnt: int


class SlashEvent(Event, frozen=True, tag="caught"):
    """A peer's work was found false and the ledger took its stake (pico-credits; `pending`: in a dispute still)."""

    peer: str
    round: int
    segment: int
    why: str
    slashed: int
    bounty: int
    burnt: int
    evidence: str
    pending: int = 0


class ProcessRestartEvent(Event, frozen=True, tag="restarted"):
    """A process died and was started again from its disk, `seconds` after its end was noticed."""

    name: str
    why: str
    seconds: float


class LeasePaymentEvent(Event, frozen=True, tag="settled"):
    """The ledger paid one lease for its accepted units."""

    peer: str
    units: int
    paid: int


class ProcessExitEvent(Event, frozen=True, tag="left"):
    """A process is gone; `reason` says on what evidence."""

    peer: str
    reason: str


class BaselineEvent(Event, frozen=True, tag="baseline"):
    """One machine trained on the same tokens."""

    loss: float
    steps: int
    seconds: float


class BaselineProgressEvent(Event, frozen=True, tag="baseline-scored"):
    """The single-machine baseline is under way: validation loss after `step` of `steps`, `tokens` trained so far."""

    step: int
    steps: int
    tokens: int
    loss: float
    seconds: float


class RepeatedRunEvent(Event, frozen=True, tag="repeated"):
    """The same job was run here before, under the same versions. `differs` names what came out otherwise: nothing."""

    run: str
    differs: tuple[str, ...]


class WarningEvent(Event, frozen=True, tag="warning"):
    """Something a person should know; the run goes on."""

    code: str
    message: str
    hint: str = ""


class RunFailureEvent(Event, frozen=True, tag="error"):
    """The run ends in an error."""

    code: str
    message: str
    cause: str = ""
    hint: str = ""


class SentBytesByKind(msgspec.Struct, frozen=True):
    """Bytes sent at the sockets, by what they were for."""

    sync: int = 0
    audit: int = 0
    join: int = 0
    control: int = 0
    relay: int = 0


class RunResultEvent(Event, frozen=True, tag="result"):
    """The end of a run. Money is in pico-credits; losses in nats per token; bytes as sent at the sockets.

    `loss`: None where the run diverged and its last model gives no number.
    """

    loss: float | None
    loss_start: float
    loss_unigram: float
    bytes_sent: int
    bytes_by: SentBytesByKind
    bytes_ring_bf16: int
    segments_audited: int
    caught: tuple[str, ...]
    paid: int
    slashed: int
    refunded: int
    sum: int
    model_hash: str
    ledger_root: str
    seconds: float
    run: str
    rounds: int
    tokens: int
    reexecuted: int
    loss_baseline: float | None = None
    burnt: int = 0
    bounty: int = 0
    pay_burnt: int = 0  # what the convicted had earned, where the job has no graph; `burnt` is of stakes
    probed: LossProbeCounts = LossProbeCounts()
    reason: str = ""  # why the rounds ended: complete, stopped, diverged; empty in logs of 0.1.0 and before


AnyEvent = (
    RunStartEvent
    | PlanEvent
    | JobClassEvent
    | ProcessStartEvent
    | ProviderMatchEvent
    | EscrowEvent
    | PeerJoinEvent
    | RoundStartEvent
    | ArrivalEvent
    | SkippedMemberEvent
    | RoundEndEvent
    | EvaluationEvent
    | ReexecutionEvent
    | RunResumeEvent
    | TrafficEvent
    | ProcessUsageEvent
    | SandboxEvent
    | SimulatedHomeEvent
    | LineageEvent
    | AuditDrawEvent
    | AuditEndEvent
    | CanaryEndEvent
    | PerjuryEvent
    | LossScoreEvent
    | SlashEvent
    | DisputeStageEvent
    | DisputeEndEvent
    | ProcessRestartEvent
    | LeasePaymentEvent
    | RelayPaymentEvent
    | PathCountsEvent
    | ValidatorKillEvent
    | ChainComparisonEvent
    | ProcessExitEvent
    | PlanComparisonEvent
    | BaselineEvent
    | BaselineProgressEvent
    | RepeatedRunEvent
    | WarningEvent
    | RunFailureEvent
    | RunResultEvent
)

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def to_json(event: AnyEvent) -> str:
    """One line of JSON with the tag `event`; key order is fixed."""
    return _ENCODER.encode(event).decode()


def from_json(line: str | bytes) -> AnyEvent:
    """Reads one line; raises msgspec.DecodeError."""
    return _DECODER.decode(line)
