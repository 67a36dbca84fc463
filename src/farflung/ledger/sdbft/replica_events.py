"""Defines a replica's events and effects: the whole interface between the rules and the shell that waits.

    events   ReplicaStartEvent     once, before all others
             ReplicaMessageEvent   a message of a peer, decoded (replica_messages.read_message)
             ReplicaTickEvent      a `WakeEffect` is due; too early or too often does no harm
             ReplicaPeerEvent      a peer can be reached
             WaitingTxsEvent       whether transactions wait for a block
             ClockDueEvent         when a block without transactions is due
             BlockBuiltEvent       the block that `BuildBlockEffect` asked for
             BlockCheckedEvent     what `CheckBlockEffect` asked for
             BlocksStoredEvent     the blocks of a `FinalBlocksEffect` are executed and stored

    effects  LogVotesEffect        must be on disk (fsync) before any effect behind it is executed
             SendEffect            to one peer; may be lost
             BroadcastEffect       to all seats but one's own, and to whoever follows
             WakeEffect            send a `ReplicaTickEvent` at this time; the latest replaces earlier ones
             BuildBlockEffect      make a block on this parent; answer with BlockBuiltEvent, or not at all
             CheckBlockEffect      execute this block on its parent's state; answer with BlockCheckedEvent
             FinalBlocksEffect     these blocks are final: store them in one transaction, then answer with
                                   BlocksStoredEvent; states that do not descend from the last are not asked for again
             AccuseEffect          two votes that no honest seat signs both
             SendBlocksEffect      send the peer stored blocks behind a height, as catch_up.in_messages puts them

Effects are executed in order. A CheckBlockEffect comes only for blocks whose parent was executed before: final, or
judged valid. `is_new` is False for a block that a quorum notarized: then its time is not compared with the clock any
more, only form, signatures and state count. When a FinalBlocksEffect ends with the block that closes the epoch, the
replica is over: it signs nothing more, and the shell makes another for the next epoch, from the committee that the
block's state names.
"""

from __future__ import annotations

from dataclasses import dataclass

from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Block, BlockHeader
from farflung.ledger.sdbft.replica_messages import Message
from farflung.ledger.sdbft.votelog_records import Record
from farflung.ledger.transactions import SignedTx
from farflung.ledger.votes import SignedVote


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """A block without a certificate."""

    header: BlockHeader
    txs: tuple[SignedTx, ...]


@dataclass(frozen=True, slots=True)
class ReplicaStartEvent:
    """The replica begins, or begins again after a crash."""


@dataclass(frozen=True, slots=True)
class ReplicaMessageEvent:
    """`peer` proved to be who sent this message."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class ReplicaTickEvent:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class ReplicaPeerEvent:
    """`peer` can be reached."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class WaitingTxsEvent:
    """Whether transactions wait for a block."""

    is_pending: bool


@dataclass(frozen=True, slots=True)
class ClockDueEvent:
    """Until `at_ms` a leader without work makes no block: the clock has nothing to do before (ledger.due_times)."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class BlockBuiltEvent:
    """The block that `BuildBlockEffect` asked for in this view; the rest as in `BlockCheckedEvent`."""

    view: int
    draft: DraftBlock
    closes: bool = False
    works: bool = False


@dataclass(frozen=True, slots=True)
class BlockCheckedEvent:
    """What executing a block gave: whether it may be voted for, closes the epoch, and holds transactions."""

    block: Hash
    is_valid: bool
    closes: bool = False
    works: bool = False


@dataclass(frozen=True, slots=True)
class BlocksStoredEvent:
    """A `FinalBlocksEffect` that ended with this block is stored; whether the block closes the epoch."""

    block: Hash
    closes: bool


Event = (
    ReplicaStartEvent
    | ReplicaMessageEvent
    | ReplicaTickEvent
    | ReplicaPeerEvent
    | WaitingTxsEvent
    | ClockDueEvent
    | BlockBuiltEvent
    | BlockCheckedEvent
    | BlocksStoredEvent
)


@dataclass(frozen=True, slots=True)
class LogVotesEffect:
    """Records that must be durable before anything behind them leaves (rule 7)."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class SendEffect:
    """A message for one peer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class BroadcastEffect:
    """A message for all."""

    message: Message


@dataclass(frozen=True, slots=True)
class WakeEffect:
    """When the next ReplicaTickEvent is wanted, in the milliseconds of `handle`."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class BuildBlockEffect:
    """The replica leads `view` and may propose a block on this parent."""

    view: int
    parent: BlockHeader


@dataclass(frozen=True, slots=True)
class CheckBlockEffect:
    """A block whose parent is executed."""

    draft: DraftBlock
    is_new: bool


@dataclass(frozen=True, slots=True)
class FinalBlocksEffect:
    """Blocks that are final, in order, each with a certificate; the last with a FINALIZE one (rule 6)."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class AccuseEffect:
    """A proof that the votes' seat broke a rule (votes.excludes)."""

    first: SignedVote
    second: SignedVote


@dataclass(frozen=True, slots=True)
class SendBlocksEffect:
    """`peer` has final blocks up to `height`; it lacks what follows."""

    peer: PeerId
    height: int


Effect = (
    LogVotesEffect
    | SendEffect
    | BroadcastEffect
    | WakeEffect
    | BuildBlockEffect
    | CheckBlockEffect
    | FinalBlocksEffect
    | AccuseEffect
    | SendBlocksEffect
)
