"""Ways not to do the work (job.cheats), to show and to test what an audit finds (Setup.cheat). Never on by themselves.

    kind              what it does instead                                     compute saved
    none              nothing: honest
    skip              only every second step                                   half
    stale             sends its last change again                              all
    copy              sends what another peer sent in the last merged round    all
    noise             sends a random change as long as its last one            all
    half-batch        trains on half of the rows                               half
    wrong-data        trains on the same few windows in every step             none
    poison-encoding   trains honestly, and encodes the change times POISON     none

A cheat begins in round FIRST; one that needs a past (what it made or merged in an earlier round, in this process)
is honest in a round without. It states a whole trace of the right form: borders that chain, losses that could be;
what it sends is what its last border gives. Everything follows from the job's seed, so a round that is
repeated gives the same bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch

from farflung.core.crypto import NS_DATA_ORDER, derive, digest
from farflung.core.errors import SpecError
from farflung.core.layout import Float32
from farflung.job.cheats import HONEST, KINDS
from farflung.train import local, messages, order, segments, work
from farflung.train.inner import VECTORS, InnerState
from farflung.train.local import Batches, Pulse
from farflung.train.segments import BorderState
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sent
from farflung.train.work import Honest, Job, Made

FIRST: Final = 1  # the first round that a cheat spoils
POISON: Final = -4.0
WINDOWS: Final = 2  # batches that `wrong-data` goes round


class Past(NamedTuple):
    """The last round of honest work: the change, shape (size,), and what was seen."""

    round: int
    change: Float32
    made: Made


class Cheat(Honest):
    """Honest until FIRST; from then on `spoil` makes the round."""

    def train(self, state: PublicState, held: InnerState, pulse: Pulse) -> Made:
        """The round's work, or what stands for it."""
        return self.spoil(state, held, pulse) if state.round >= FIRST else super().train(state, held, pulse)

    def ahead(self, state: PublicState, held: InnerState) -> None:
        """Nothing: a cheat has no work that takes time to hide."""

    def spoil(self, state: PublicState, held: InnerState, pulse: Pulse) -> Made:
        """What the cheat does from round FIRST on."""
        raise NotImplementedError


class Skip(Cheat):
    """Makes every second step, and counts all."""

    def spoil(self, state: PublicState, held: InnerState, pulse: Pulse) -> Made:
        """A skipped step repeats the loss of the one before it."""
        job, member = self.job, self.job.setup.member
        batches = job.batches(state.round, member)
        first_border = work.fresh(state, held)
        at = replace(first_border, params=segments.begin(replace(first_border, params=None), state.params))
        states, losses, largest = [first_border], list[float](), 0.0
        for step in range(self.steps):
            if step % 2 == 0:
                leg = local.leg(job.model, job.spec, at, batches, member, range(step, step + 1), pulse)
                at, seen, largest = leg.end, leg.losses[0], max(largest, leg.grad_norm)
            else:
                at = replace(at, step=at.step + 1)
            losses.append(seen)
            if step + 1 in self.borders:
                states.append(at)
        return Made(tuple(states), tuple(losses), largest)


class OtherBatches(Cheat):
    """Trains in full, on batches that the spec does not give."""

    def spoil(self, state: PublicState, held: InnerState, pulse: Pulse) -> Made:
        """An honest round on `batches`."""
        return work.trained(self.job, state, held, self.batches(state.round), pulse, self.borders)

    def batches(self, round: int) -> Batches:
        """What it trains on in a round, by step."""
        raise NotImplementedError


class HalfBatch(OtherBatches):
    """Half of the rows, one at least."""

    def batches(self, round: int) -> Batches:
        """The first rows of the right batch."""
        right = self.job.batches(round, self.job.setup.member)
        rows = max(1, self.job.spec.batch // 2)

        def half(step: int) -> tuple[order.Int64, order.Int64]:
            x, y = right(step)
            return x[:rows], y[:rows]

        return half


class WrongData(OtherBatches):
    """The same few windows all the time."""

    def batches(self, round: int) -> Batches:
        """The first batches of round 0, in turn."""
        first = self.job.batches(0, self.job.setup.member)
        return lambda step: first(step % WINDOWS)


class Idle(Cheat):
    """Trains nothing, and claims to have gone straight to where `change` leads. One forward pass makes it plausible."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.past: Past | None = None

    def train(self, state: PublicState, held: InnerState, pulse: Pulse) -> Made:
        """Honest as long as there is nothing to send instead; that work becomes the past of later rounds."""
        past = self.past
        if state.round >= FIRST and past is not None and past.round < state.round:
            change = self.change(state, past)
            if change is not None:
                return claimed(self, state, held, change, past.made, self.first_loss(state))
        made = Honest.train(self, state, held, pulse)
        self.past = Past(state.round, made.end - state.params, made)
        return made

    def first_loss(self, state: PublicState) -> float:
        """The loss of step 0, as an honest peer sees it."""
        job, member = self.job, self.job.setup.member
        job.model.put(state.params)
        local.seed(job.spec, state.round, member, 0)
        with torch.no_grad():
            return float(job.model.loss(*local.tensors(job.batches(state.round, member)(0))))

    def change(self, state: PublicState, past: Past) -> Float32 | None:
        """What to send as P_end - P_r, shape (size,); None when there is nothing."""
        raise NotImplementedError


class Stale(Idle):
    """Its last change again."""

    def change(self, state: PublicState, past: Past) -> Float32 | None:
        """As it was."""
        return past.change


class Noise(Idle):
    """A random change, as long as the last one."""

    def change(self, state: PublicState, past: Past) -> Float32 | None:
        """Uniform in every element, the right length in every tensor."""
        key = digest(NS_DATA_ORDER, b"noise", self.job.spec.seed.to_bytes(8, "little"))
        about = state.round.to_bytes(8, "little") + self.job.setup.member.to_bytes(8, "little")
        raw = derive(NS_DATA_ORDER, key, about, length=4 * past.change.size)
        noise = np.frombuffer(raw, "<i4").astype(np.float32)
        for _, place in self.job.model.layout.slices():
            norm = float(np.linalg.norm(noise[place]))
            noise[place] *= np.float32(float(np.linalg.norm(past.change[place])) / max(norm, 1.0))
        return noise


class Copy(Idle):
    """What another peer sent in the last merged round."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.seen: Float32 | None = None

    def change(self, state: PublicState, past: Past) -> Float32 | None:
        """What `merged` kept."""
        return self.seen

    def merged(self, state: PublicState, parts: Sequence[messages.Part]) -> None:
        """Keeps the first contribution of somebody else."""
        sync, layout = self.job.sync, self.job.model.layout
        for part in parts:
            if part.peer != self.job.setup.peer:
                values = sync.decode(sync.about(state, layout, part.peer), layout, part.payload)
                self.seen = sync.spread(state.round, layout, values)
                return


class Poison(Honest):
    """Trains honestly, and sends something else."""

    def encode(self, state: PublicState, held: InnerState, made: Made) -> Sent:
        """The change times POISON."""
        if state.round < FIRST:
            return super().encode(state, held, made)
        end = state.params + np.float32(POISON) * (made.end - state.params)
        return work.encoded(self.job, state, self.job.setup.peer, made.states[0], end)


def claimed(
    by: Honest, state: PublicState, held: InnerState, change: Float32, past: Made, loss: float
) -> Made:
    """A round that nobody made: straight from P_r to P_r + change, an optimizer that only counts, and losses that fall
    from `loss` as those of `past` fell.
    """
    zeros = tuple(np.zeros_like(change) for _ in VECTORS[by.job.spec.optimizer.name])
    states = [work.fresh(state, held)]
    for done in by.borders[1:]:
        params = state.params + change * np.float32(done / by.steps)
        vectors = held.vectors or zeros
        step = held.step + done
        states.append(BorderState(state.round, step, params, vectors, held.residual, held.offset))
    fall = [one / past.losses[0] for one in past.losses]
    losses = tuple(loss * fall[step % len(fall)] for step in range(by.steps))
    return Made(tuple(states), losses, past.grad_norm)


_WORKERS: Final[Mapping[str, Callable[[Job], Honest]]] = {
    HONEST: Honest,
    "skip": Skip,
    "stale": Stale,
    "copy": Copy,
    "noise": Noise,
    "half-batch": HalfBatch,
    "wrong-data": WrongData,
    "poison-encoding": Poison,
}


def worker(job: Job) -> Honest:
    """Who does the work of this job's setup; raises SpecError FF-TRAIN-064 (unknown cheat)."""
    kind = job.setup.cheat
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.0)[0]
        raise SpecError(
            "FF-TRAIN-064",
            f"unknown cheat {kind[:40]!r}",
            cause=f"there are {', '.join(KINDS)}",
            hint=f"write {near!r}",
        )
    return _WORKERS[kind](job)
