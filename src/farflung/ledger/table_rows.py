"""Defines the rows of the tables. A row keeps its index for ever and is never deleted, only closed.

| table    | key        | holds money in |
|----------|------------|----------------|
| accounts | owner      | balance |
| nodes    | node       | free + locked stake, and what was burnt |
| jobs     | job        | escrow |
| leases   | job, node  | - |
| epochs   | job, round | - |
| keys     | account    | - |
| channels | payer, relay | what is left of its deposit |
| disputes | job, node  | stake, pay and bond, until it is decided |
| ballots  | job, node, juror | - |
| pinpoints | job, node | a challenger's bond, until it is decided |
| exclusions | node | the bond of an appeal, until it is decided |

Who decides is in ledger.validators (committees, validators) and ledger.motions (params, motions).

`money` of all rows together is what genesis minted, after every block.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.disputes import BallotRow, DisputeRow
from farflung.ledger.exclusions import ExclusionRow
from farflung.ledger.motions import MotionRow, ParamsRow
from farflung.ledger.pinpoint_game import PinpointRow
from farflung.ledger.transactions import LeaseRole
from farflung.ledger.validators import CommitteeRow, ValidatorRow

NOBODY = PeerId(bytes(ZERO_HASH))


class JobState(IntEnum):
    """Where a job is in its life; `rules.jobs` holds the edges."""

    CREATED = 0
    RUNNING = 1
    OUTPUT = 2
    SETTLED = 3
    CANCELLED = 4
    EXPIRED = 5
    STOPPED = 6  # cancelled while it ran: its verification window is open


HOLDS_MONEY: Final = (JobState.CREATED, JobState.RUNNING, JobState.OUTPUT, JobState.STOPPED)


class NodeState(IntEnum):
    """Whether a node lends."""

    ACTIVE = 0
    LEFT = 1


class AccountRow(Wire, frozen=True):
    """Free money of one key. `nonce` is that of the next transaction."""

    TABLE = "accounts"

    owner: PeerId
    balance: int = 0
    nonce: int = 0

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.owner

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.balance


class NodeRow(Wire, frozen=True):
    """A provider or verifier. `locked` backs its `leases` open leases; `free` may back further ones.

    `burnt` is what it lost by slashing and nobody got: it stays here for ever and backs nothing.
    """

    TABLE = "nodes"

    node: PeerId
    caps: Hash
    unit_price: int
    expires: int
    free: int = 0
    locked: int = 0
    leases: int = 0
    burnt: int = 0
    state: NodeState = NodeState.ACTIVE

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.node

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.stake + self.burnt

    @property
    def due(self) -> int:
        """From when on the clock releases it."""
        return limits.NEVER if self.leases or self.state != NodeState.ACTIVE else self.expires

    @property
    def stake(self) -> int:
        """Pico-credits that back something, or may."""
        return self.free + self.locked


class JobRow(Wire, frozen=True):
    """A job. `reserved` is what its open leases may cost at most; `last` the newest of its `leases` leases.

    `round` is the next one to be recorded, `root` the public state root of the last recorded one. `slashed` is
    what the stakes of its leases lost; `until` ends the verification window of a job that has ended. `terms` is the
    version of the parameters that holds for its whole life. `drawn` is the next round to be drawn, and
    `drawn_of` what the last JobDraw names. `reserved` also holds the pay that is burnt at the end (rules.slashes);
    after the end nothing else is in `escrow`.
    """

    TABLE = "jobs"

    job: Hash
    requester: PeerId
    escrow: int
    unit_price_max: int
    rounds: int
    deadline: int
    state: JobState = JobState.CREATED
    reserved: int = 0
    leases: int = 0
    last: PeerId = NOBODY
    round: int = 0
    root: Hash = ZERO_HASH
    output: Hash = ZERO_HASH
    paid: int = 0
    refunded: int = 0
    slashed: int = 0
    until: int = 0
    terms: int = 0
    drawn: int = 0
    drawn_of: Hash = ZERO_HASH

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.job

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.escrow

    @property
    def held(self) -> int:
        """Pico-credits that are paid or refunded at the job's end; none after it."""
        return self.escrow if self.state in HOLDS_MONEY else 0

    @property
    def burnt(self) -> int:
        """Pico-credits of convicted nodes' pay that nobody gets, known at the job's end."""
        return self.escrow - self.held

    @property
    def due(self) -> int:
        """From when on the clock ends it."""
        return self.deadline if self.state in HOLDS_MONEY else limits.NEVER


class LeaseRow(Wire, frozen=True):
    """One node in one job. `previous` chains the job's leases, newest first.

    `units` is what Progress recorded, `vouched` the most that a tally said (both since the job began). A lease that
    slashing ended names its `evidence`; its stake lost `slashed`, and its units are forfeited. The stake of an accuser
    stays locked while `disputes` that it is one in are pending, even when the lease is closed (rules.disputes).
    `attests` is its offer's.
    """

    TABLE = "leases"

    job: Hash
    node: PeerId
    unit_price: int
    stake: int
    units_max: int
    previous: PeerId
    role: LeaseRole = LeaseRole.TRAIN
    units: int = 0
    paid: int = 0
    slashed: int = 0
    evidence: Hash = ZERO_HASH
    is_open: bool = True
    vouched: int = 0
    disputes: int = 0
    attests: Hash = ZERO_HASH

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return lease_key(self.job, self.node)

    @property
    def earned(self) -> int:
        """Units that it is paid for."""
        return max(self.units, self.vouched)

    @property
    def money(self) -> int:
        """Leases hold none: stakes lie with the node, pay with the job."""
        return 0


class EpochRow(Wire, frozen=True):
    """One recorded round of a job. `time`: the end of the hour in which it was recorded, ledger milliseconds.

    The first one is there when it is drawn: its `root` is zero, its `contributions` what the draw names, until then.
    """

    TABLE = "epochs"

    job: Hash
    round: int
    root: Hash
    contributions: Hash
    time: int = 0

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return epoch_key(self.job, self.round)

    @property
    def money(self) -> int:
        """Epochs hold none."""
        return 0


class KeyRow(Wire, frozen=True):
    """The node keys of one account. At `epoch` 0 `node` is the account itself; `void` is the first epoch not revoked.

    The `previous` key counts until `until`. `expires` and `until`: seconds since 1970.
    """

    TABLE = "keys"

    account: PeerId
    node: PeerId
    previous: PeerId
    epoch: int = 0
    expires: int = 0
    previous_epoch: int = 0
    until: int = 0
    void: int = 0

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.account

    @property
    def money(self) -> int:
        """Keys hold none."""
        return 0


class ChannelRow(Wire, frozen=True):
    """One payer's money for one relay. `opening` counts how often it was opened; what follows is of the last time.

    `price`: pico-credits a GiB. Passes below `serial` are settled; `carried` bytes were billed, `paid` for them.
    """

    TABLE = "channels"

    payer: PeerId
    relay: PeerId
    opening: int = 0
    price: int = 0
    held: int = 0
    expires: int = 0
    serial: int = 0
    carried: int = 0
    paid: int = 0
    is_open: bool = False

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return channel_key(self.payer, self.relay)

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.held

    @property
    def due(self) -> int:
        """The end that the clock acts on, after some grace."""
        return self.expires if self.is_open else limits.NEVER


Row = (
    AccountRow
    | NodeRow
    | JobRow
    | LeaseRow
    | EpochRow
    | KeyRow
    | ChannelRow
    | DisputeRow
    | BallotRow
    | CommitteeRow
    | ParamsRow
    | ValidatorRow
    | MotionRow
    | PinpointRow
    | ExclusionRow
)

KINDS: dict[str, type[Row]] = {
    kind.TABLE: kind
    for kind in (
        AccountRow,
        NodeRow,
        JobRow,
        LeaseRow,
        EpochRow,
        KeyRow,
        ChannelRow,
        DisputeRow,
        BallotRow,
        CommitteeRow,
        ParamsRow,
        ValidatorRow,
        MotionRow,
        PinpointRow,
        ExclusionRow,
    )
}

Timed = NodeRow | JobRow | ChannelRow | DisputeRow | ValidatorRow | MotionRow | PinpointRow | ExclusionRow
# Rows with a `due`, which LedgerTable keeps an index of.
TIMED: Final = (NodeRow, JobRow, ChannelRow, DisputeRow, ValidatorRow, MotionRow, PinpointRow, ExclusionRow)


def lease_key(job: Hash, node: PeerId) -> bytes:
    """The key of a lease in its table."""
    return job + node


def channel_key(payer: PeerId, relay: PeerId) -> bytes:
    """The key of a channel in its table."""
    return payer + relay


def epoch_key(job: Hash, number: int) -> bytes:
    """The key of a recorded round in its table."""
    return job + number.to_bytes(8, "big")
