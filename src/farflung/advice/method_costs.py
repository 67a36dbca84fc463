"""Computes what each method costs on given links, in bytes and seconds; nothing is run.

N peers, payload p bytes, H steps a round, c seconds of compute a step, rates u and d, round trip t. With w(p) the bytes
at the socket of a stored object (encryption, frames, requests: plan.run_traffic.on_wire):

    up       w(p) N          what `farflung run` does: pushed to one replica, fetched by N - 2 peers and the requester
             w(p)            where a server fans out what it is sent once
    down     w(p) (N - 1)    all-gather: everybody takes everybody's
    exchange max(8 up / u, 8 down / d) + trips t                      a round; both directions at once
    step     c + exchange / H, or max(c, exchange / H) where a round's change is applied a round late (sync.delay)
    share    exchange / (H c + exchange)

Two ratios, which must not be mixed. *The metric* is a bf16 ring all-reduce of every gradient among the same N peers,
2 (N - 1) / N x 2 bytes a parameter each way and step, over the larger of the bytes up and down that a peer moves. *The
literature's* is one float32 gradient a step over one payload, one way: it does not see that N - 1 payloads come back.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from farflung.core import limits
from farflung.core.errors import SpecError
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes, Seconds
from farflung.job.methods.registry import METHODS, method_of
from farflung.job.methods.sync_method import LinkRole
from farflung.job.spec import SyncSpec
from farflung.plan.link_syntax import Link
from farflung.plan.run_traffic import PUSH, control_bytes, on_wire, ring_each
from farflung.plan.state_vectors import FLOAT, payload_bytes

STEPS: Final = (5, 10, 15, 20, 30, 50, 100)  # local steps of a round that are tried
TOPKS: Final = (64, 128, 256, 512, 768)  # of 4096; 64 is SparseLoCo's own, 768 the local preset's
ENOUGH: Final = 0.05  # share of a round that an exchange may take
TRIPS: Final = 6  # of messages in a round: order and promise, push (3), list of accepted, fetch


class MethodSetting(msgspec.Struct, frozen=True):
    """Who agrees over what: `step` is the compute of one local step of one peer; a round has `most` of them at most."""

    layout: TensorLayout
    link: Link
    peers: int
    step: Seconds
    is_fanned_out: bool = False
    most: int = STEPS[-1]

    @property
    def steps(self) -> tuple[int, ...]:
        """Local steps of a round that are tried."""
        return tuple(steps for steps in STEPS if steps <= self.most) or (max(1, self.most),)


def steps_most(step_tokens: int) -> int:
    """Local steps that one round may have: a peer's tokens of it are its weight in the merge, which has a bound."""
    return limits.WEIGHT // step_tokens


class MethodEstimate(msgspec.Struct, frozen=True):
    """One method as it would run: `up` and `down` bytes of a peer a step, `compute` and `exchange` seconds a round."""

    sync: SyncSpec
    payload: Bytes
    up: float
    down: float
    compute: Seconds
    exchange: Seconds
    uploading: Seconds
    downloading: Seconds
    ring: float  # times fewer bytes than a bf16 ring: the metric
    literature: float  # one float32 gradient a step over one payload

    @property
    def method(self) -> str:
        """Its name."""
        return self.sync.method

    @property
    def step(self) -> Seconds:
        """Seconds a step, exchange included."""
        of_round = max(self.compute, self.exchange) if self.sync.delay else self.compute + self.exchange
        return Seconds(of_round / self.sync.steps)

    @property
    def share(self) -> float:
        """Part of a round that is exchange, were nothing of it hidden."""
        whole = self.compute + self.exchange
        return self.exchange / whole if whole else 0.0

    @property
    def fits(self) -> bool:
        """Whether the exchange takes little, or less than the compute that it hides behind."""
        return self.share <= ENOUGH or (self.sync.delay > 0 and self.exchange <= self.compute)


def sync_of(method: str, **changes: Any) -> SyncSpec:
    """A method's [sync] with its own defaults, and `changes` to them."""
    keys = method_of(method).defaults
    own = {key.partition(".")[2]: value for key, value in keys.items() if key.startswith("sync.")}
    return SyncSpec(**{**own, "method": method, **changes})


def estimate(setting: MethodSetting, sync: SyncSpec) -> MethodEstimate:
    """Bytes and seconds of one method; raises what its codec raises for parameters that it does not take."""
    peers, steps = setting.peers, sync.steps
    payload = payload_bytes(sync, setting.layout)
    sent = on_wire(round(payload))
    talk = control_bytes(peers, steps) / peers
    up = talk + PUSH + sent * (1 if setting.is_fanned_out else peers)
    down = talk + sent * (peers - 1)
    uploading, downloading = 8 * up / setting.link.up, 8 * down / setting.link.down
    waiting = TRIPS * setting.link.round_trip
    return MethodEstimate(
        sync=sync,
        payload=Bytes(round(payload)),
        up=up / steps,
        down=down / steps,
        compute=Seconds(setting.step * steps),
        exchange=Seconds(max(uploading, downloading) + waiting),
        uploading=Seconds(uploading),
        downloading=Seconds(downloading),
        ring=ring_each(setting.layout.size, peers) * steps / max(up, down),
        literature=FLOAT * setting.layout.size * steps / payload,
    )


def shortest(setting: MethodSetting, method: str, **changes: Any) -> MethodEstimate:
    """The method with the fewest local steps at which it fits; with the most that are tried where it never does."""
    if method_of(method).is_stepwise:
        return estimate(setting, sync_of(method, **changes))
    found = estimate(setting, sync_of(method, steps=setting.steps[0], **changes))
    for steps in setting.steps[1:]:
        if found.fits:
            break
        found = estimate(setting, sync_of(method, steps=steps, **changes))
    return found


def least(name: str) -> dict[str, int]:
    """What a method sends at the least, where its density is what is tried."""
    return {"topk": TOPKS[0]} if method_of(name).role is LinkRole.NARROW else {}


def estimates(setting: MethodSetting) -> tuple[MethodEstimate, ...]:
    """Every method that this model can take, with its own codec, in the order of job.methods; at its least density
    what is chosen by density.
    """
    rows: list[MethodEstimate] = []
    for name in METHODS:
        try:
            rows.append(shortest(setting, name, **least(name)))
        except SpecError:
            continue  # no matrix of the model has factors that save bytes
    return tuple(rows)
