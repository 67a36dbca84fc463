"""What a pipelined step comes to with its failures, and what several pipelines send each other (T1, T7, P1).

Each stage's hosts exchange what that stage has changed, all stages at the same time, so a round waits for the stage
whose bytes are most for its lines. The method and H are those that suit that stage (plan.choose); the codec's payload
goes from each member to each (Peng et al. 2024). A replica group is one pipeline. When one of its hosts leaves, that
pipeline alone stops: it goes on from the last round, whose state the others hold, or from a checkpoint of its own,
whichever loses less.
"""

from __future__ import annotations

import math

import msgspec

from farflung.core.layout import Layout
from farflung.core.units import Seconds, format_bytes
from farflung.job.spec import SyncSpec
from farflung.plan.advice import keeping, replicas
from farflung.plan.advice.laid import Laid
from farflung.plan.advice.options import Fact, Found, Option, Share, held, mean_churn, precise
from farflung.plan.advice.replicas import Assumed, slowest_line
from farflung.plan.advice.work import Work
from farflung.plan.advise import describe_codec
from farflung.plan.choose import choose
from farflung.plan.methods import Setting, estimate
from farflung.plan.parallel.stages import PIPELINE


class Agreed(msgspec.Struct, frozen=True):
    """A step with its share of the round's exchange; `up` and `down` bytes a step of the stage with most."""

    step: Seconds
    sync: SyncSpec | None = None
    up: float = 0.0
    down: float = 0.0
    facts: tuple[Fact, ...] = ()
    tail: Seconds = Seconds(0.0)  # behind the last step
    each: tuple[tuple[float, ...], tuple[float, ...]] | None = (
        None  # bytes up and down of each stage's hosts a step
    )


def agreed(work: Work, laid: Laid) -> Agreed:
    """One pipeline agrees with nobody."""
    step = laid.step
    if len(laid.grid) == 1:
        return Agreed(step)
    lines = [slowest_line(members) for members in zip(*laid.grid, strict=True)]
    most = work.steps_most(len(laid.grid), laid.sequences * work.context)
    layouts = parts(work, laid.counts)
    settings = [
        Setting(layout, line, len(laid.grid), step, most=most)
        for layout, line in zip(layouts, lines, strict=True)
        if layout is not None
    ]
    binding = max(settings, key=lambda each: each.layout.size / min(each.link.up, each.link.down))
    choice = choose(binding)
    sync = choice.chosen.sync
    each = [estimate(setting, sync) for setting in settings]
    longest = max(each, key=lambda one: one.exchange)
    at = each.index(longest)
    facts = replicas.agreeing(longest, settings[at], choice.reasons)
    facts.append(
        Fact(
            "stages",
            f"{len(each)} exchanges at a time",
            f"of {', '.join(format_bytes(one.payload) for one in each)} a member; stage {at + 1} is the last",
            "Peng et al. 2024, section 3",
        )
    )
    tail = longest.exchange if sync.delay else Seconds(0.0)
    most_up, most_down = (max(getattr(one, way) for one in each) for way in ("up", "down"))
    moved = iter(each)
    stages = [next(moved) if layout is not None else None for layout in layouts]
    up, down = ([getattr(one, way) if one else 0.0 for one in stages] for way in ("up", "down"))
    return Agreed(longest.step, sync, most_up, most_down, tuple(facts), tail, (tuple(up), tuple(down)))


def parts(work: Work, counts: tuple[int, ...]) -> tuple[Layout | None, ...]:
    """The tensors of each stage; None where all of its layers' belong to another one's, too."""
    stage_of = [0, *(stage for stage, count in enumerate(counts) for _ in range(count)), len(counts) - 1]
    shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in counts]
    for tensor in work.layout.tensors:  # places are 0, 1 to layers, and -1, the last
        shapes[stage_of[work.model.place(tensor.name)]][tensor.name] = tensor.shape
    return tuple(Layout.of(each) if each else None for each in shapes)


def option(work: Work, laid: Laid, assumed: Assumed) -> Found:
    """The whole job on a laid grid."""
    found = agreed(work, laid)
    crew = tuple(host for way in laid.grid for host in way)
    activation = work.model.handed(laid.micro)
    sent = _sent(laid)[min(1, len(laid.counts) - 2)]  # of an inner stage, where there is one
    moved, times = activation * laid.micros * max(sent), f" x {max(sent):.4g}" if max(sent) != 1.0 else ""
    kept = _counting(work, laid, found, assumed)
    if (blocked := keeping.blocked(laid.kind, kept)) is not None:
        return blocked
    shares = _shares(work, laid, activation, found)
    busiest = max(laid.run.work)
    cut = "/".join(map(str, laid.counts)) + (f" with {laid.code.words}" if laid.code.words else "")
    how = f"layers {cut}"
    if found.sync is not None:
        how = f"{len(laid.grid)} of layers {cut}, {found.sync.method} H={found.sync.steps} {describe_codec(found.sync)}"
    facts = (
        Fact(
            "a step",
            precise(laid.step),
            " + ".join(precise(each) for each in (laid.passed, *(extra.seconds for extra in laid.after)))
            + f"; 1F1B, {laid.micros} micro-batches of {laid.micro}"
            + "".join(f", then {extra.name}" for extra in laid.after)
            + f"; layers {cut}; the busiest stage computes {precise(busiest)}",
            "Narayanan et al. 2021, section 2.2.1; event by event: plan/parallel/schedules",
        ),
        *(Fact(extra.name, precise(extra.seconds), extra.formula, extra.source) for extra in laid.after),
        Fact(
            "activations",
            format_bytes(moved),
            f"{format_bytes(activation)} x {laid.micros}{times}; a cut and micro-batch"
            + (", an inner stage has two cuts" if len(laid.counts) > 2 else ""),
            PIPELINE,
        ),
        *_coded(work, laid),
        *found.facts,
        *kept.facts,
        *held(laid.tight),
    )
    return Option(
        kind=laid.kind, how=how, hosts=crew, recompute=laid.recompute, micro=laid.micro, step=found.step,
        exchange=Seconds(found.step - busiest),
        steps=math.ceil(work.tokens / (len(laid.grid) * laid.sequences * work.context)),
        up=max(share.up for share in shares), down=max(share.down for share in shares),
        efficiency=kept.efficiency, stored=kept.stored,
        worst=laid.tight, tokens=work.tokens, facts=facts, sequences=len(laid.grid) * laid.sequences,
        ways=len(laid.grid), sync=found.sync, tail=found.tail, shares=shares,
    )  # fmt: skip


def _shares(work: Work, laid: Laid, activation: float, found: Agreed) -> tuple[Share, ...]:
    """Of each host: an end hands on and gets one cut's activations, an inner stage two; both ends a shared table's."""
    last, sent = len(laid.counts) - 1, _sent(laid)

    def moved(at: int, way: int) -> float:
        return activation * laid.micros * sent[at][way] + (laid.shared if at in (0, last) else 0.0)

    up, down = found.each or ((0.0,) * (last + 1),) * 2
    kept = work.public(found.sync) / (last + 1) if found.sync else 0.0
    return tuple(
        Share(kept, 0.0, moved(at, 0) + up[at], moved(at, 1) + down[at])
        for _ in laid.grid
        for at in range(last + 1)
    )


def _sent(laid: Laid) -> tuple[tuple[float, float], ...]:
    """Cuts of plain bytes that each stage sends and gets: activations go forward, their gradients back."""
    forward, back = laid.code.sent
    inner = ((forward + back,) * 2,) * (len(laid.counts) - 2)
    return ((forward, back), *inner, (back, forward))


def _coded(work: Work, laid: Laid) -> tuple[Fact, ...]:
    """What of plain bytes is sent, what is plain all the same, and what a code keeps for it."""
    code = laid.code
    if not code.words:
        return ()
    (forward, back), coded = code.sent, 1.0 - code.first
    text = f"{forward:.4g} + {back:.4g}; of plain bytes, forward and back"
    found = [Fact(code.words, f"{forward + back:.4g}", text, code.source)]
    if code.kept:
        mean = f"{code.first:.4g} x {precise(laid.plain)} + {coded:.4g} x {precise(laid.run.seconds)}"
        found += [
            Fact("until all are through", precise(laid.passed), f"{mean}; the first epoch is plain", code.source),
            Fact(
                "kept at each end of a cut", format_bytes(code.kept),
                f"{work.examples} x {format_bytes(work.model.handed(1))}; an example's activation, in RAM or on disk",
                code.source,
            ),
        ]  # fmt: skip
    return tuple(found)


def _counting(work: Work, laid: Laid, found: Agreed, assumed: Assumed) -> keeping.Kept:
    """What a pipeline that stops goes on from: its stages' checkpoints, or what the others hold of the last round."""
    crew = [host for way in laid.grid for host in way]
    layouts = parts(work, laid.counts)
    each = [keeping.states(work.recipe, part.size if part is not None else 0) for part in layouts]
    sizes = each * len(laid.grid)
    mean = mean_churn(crew, assumed.churn) / len(each)
    written = keeping.checkpointed(sizes, crew, mean)
    if found.sync is None:
        return written
    again = max(keeping.restart(size, host.link) for size, host in zip(sizes, crew, strict=True))
    lost = again + found.sync.steps * found.step / 2
    text = f"R + H t / 2, once a pipeline of {len(each)}: the others hold what a round began with"
    held = keeping.renewed(lost, mean, text)
    return held if held.efficiency >= written.efficiency else written
