"""Turns facts of events into words in one place, so that the screen and the plain lines cannot disagree.

Text that came from elsewhere passes `clean`: no control characters, nothing that moves a cursor, a width that is known.
Rounds are named as in the event log, from 0; progress counts the rounds that are closed.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from farflung.core import events
from farflung.core.events import SentBytesByKind
from farflung.core.money import CREDIT, format_credits
from farflung.core.units import format_bytes, format_count, format_multiple, format_rate, format_seconds
from farflung.ledger.votes import faults
from farflung.watch.fold import RoundWait, RunTimeline

HOLDS: Final = "holds"  # the finding of an audit of honest work
FALSE: Final = "false"
SMALL_CREDITS: Final = CREDIT // 1000  # below this all digits are shown
SHORT: Final = 8  # digits of a key or hash that are enough for the eye
_SHORT_KEY: Final = re.compile(rf"(?<![(\w])[0-9a-f]{{{SHORT}}}(?!\w)")
HERE: Final = ("local network on this computer; nothing leaves it", "local network; nothing leaves it")
TELLING_SECONDS: Final = 2.0  # who comes so much later than all others is named
OWES: Final = {"train": "to train", "reveal": "to send a payload", "merge": "to merge"}
DONE: Final = {"train": "trained", "reveal": "sent a payload", "merge": "merged"}
ALSO: Final = "also: report, eval, watch, verify-run"  # further verbs that take a run
UNFINISHED: Final = "none yet: the run was stopped before its end"
LEFT_OUT: Final = "FF-APP-133"  # the warning that the baseline is not waited for
ESCAPED: Final = "FF-APP-486"  # the warning that nobody caught the planted cheater
ASKED_TO_STOP: Final = "FF-APP-131"  # the warning that the first Ctrl-C was heard
# By the fields of events.PathCountsEvent, best first.
WAYS: Final = {"lan": "on the LAN", "direct": "direct", "opened": "hole-punched", "relay": "relayed"}
PLANNED: Final = (0.5, 2.0)  # of the planned time: a machine that is idle, one that does much else
FEW: Final = 2  # so many who are late are named
DID: Final = {"train": "trained", "reveal": "had sent its payload", "merge": "merged"}


def columns_of(text: str) -> int:
    """Cells that cleaned `text` takes on a terminal: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _shown(char: str) -> str:
    # The width of these depends on their neighbours.
    is_joined = unicodedata.category(char) in ("Mn", "Me", "Mc", "Cf", "Lm", "Sk")
    return "?" if (is_joined and ord(char) > 127) or not char.isprintable() else char


def clean(text: str, size: int) -> str:
    """`text` without what does not print, cut to `size` columns."""
    if text.isascii() and text.isprintable():
        return text if len(text) <= size else text[: max(0, size - 1)] + "…"[: max(0, size)]
    whole = "".join(_shown(c) for c in text[: 4 * max(size, 1)])
    if columns_of(whole) <= size:
        return whole
    kept = ""
    for char in whole:
        if columns_of(kept + char) > size - 1:
            break
        kept += char
    return kept + "…"[: max(0, size)]


def peer(key: str) -> str:
    """A peer's key as it is shown."""
    return clean(key[:SHORT], SHORT)


def named(key: str, t: RunTimeline) -> str:
    """A peer as it is shown: `provider-2 (33c98439)`, or its key alone where its name is not known here."""
    name = clean(t.names.get(key, ""), 24)
    return f"{name} ({peer(key)})" if name else peer(key)


def with_names(text: str, t: RunTimeline) -> str:
    """What a process said that knows keys alone: the name stands beside each key that has one here."""
    names = {peer(key): named(key, t) for key in t.names}
    return _SHORT_KEY.sub(lambda found: names.get(found[0], found[0]), text) if names else text


def peers(keys: Sequence[str], t: RunTimeline, most: int = 4) -> str:
    """Some peers and how many more."""
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(named(key, t) for key in keys[:most]) + more


def many(count: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def credits_of(amount: int) -> str:
    """An amount with its unit, to the last pico-credit, as ledger verbs say it."""
    return f"{format_credits(amount)} credits"


def shown_credits(amount: int) -> str:
    """An amount with its unit, for the eye."""
    return f"{short_credits(amount)} credits"


def short_credits(amount: int) -> str:
    """An amount for the eye, three digits of it: `0.645`; reports, receipts and `--json` have all of them."""
    if abs(amount) < SMALL_CREDITS:
        return format_credits(int(float(f"{amount:.3g}"))).rstrip("0").rstrip(".") if amount else "0"
    return f"{float(f'{amount / CREDIT:.3g}'):,.15g}"


def anchor(unit_price: int) -> str:
    """What a credit buys: `1 credit = 1 M tokens here`; empty where the price of a token is not known."""
    return f"1 credit = {format_count(CREDIT / unit_price)} tokens here" if unit_price > 0 else ""


def loss_text(loss: float | None, t: RunTimeline) -> str:
    """A loss with its unit, and in bits a byte where a token is a byte: `1.935 nats/token (2.79 bits/byte)`."""
    if loss is None:
        return "is no number (NaN or infinite)"
    is_bytes = t.plan is not None and t.plan.is_text
    return f"{loss:.3f} nats/token" + (f" ({loss / math.log(2):.3g} bits/byte)" if is_bytes else "")


def less_than(ring: int, own: int) -> str:
    """Bytes against those of the usual way: `5.6x less than a bf16 ring all-reduce (3.2 GB, calculated)`."""
    if not ring or own <= 0:
        return ""
    ratio, side = (ring / own, "less") if own <= ring else (own / ring, "more")
    return f"{format_multiple(ratio)}x {side} than a bf16 ring all-reduce ({format_bytes(ring)}, calculated)"


def clock(seconds: float) -> str:
    """`2:05`, for a column that keeps its width."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def planned_span(seconds: float) -> str:
    """A planned time as the range in which it usually ends: `40 s to 2 min 38 s`."""
    low, high = (format_seconds(round(share * seconds)) for share in PLANNED)
    return f"{low} to {high}"


def span_left(seconds: tuple[float, float], since: float = 0.0) -> str:
    """`0:48 to 1:10 left`, or one clock where both ends are the same; `since` of it is over."""
    low, high = (clock(each - since) for each in seconds)
    return f"{high} left" if low == high else f"{low} to {high} left"


def amount(value: float, unit: str) -> str:
    """A planned or measured value in the words of its unit."""
    match unit:
        case "B":
            return format_bytes(value)
        case "s":
            return format_seconds(value)
        case "pico-credits":
            return shown_credits(round(value))
    return f"{value:.4g} {clean(unit, 20)}".rstrip()


def warnings(t: RunTimeline, is_over: bool) -> tuple[events.WarningEvent, ...]:
    """Those that still hold: of the session under way, and what Ctrl-C does only while there is a run to stop."""
    known = (w for w in t.warnings if w.at >= t.session_at)
    return tuple(w for w in known if not (is_over and w.code == ASKED_TO_STOP))


def is_comparing(t: RunTimeline) -> bool:
    """Whether the single-machine baseline trains, and nothing else is left to do."""
    planned = t.plan is not None and t.plan.baseline_seconds and t.settled
    return bool(t.baseline_scores or planned) and t.baseline is None and not is_left_out(t)


def is_left_out(t: RunTimeline) -> bool:
    """Whether the single-machine baseline is skipped, as was asked."""
    return any(w.code == LEFT_OUT for w in warnings(t, is_over=False))


def run_name(t: RunTimeline) -> str:
    """The name by which a person finds the run again; empty when nobody said."""
    known = t.result.run if t.result else t.plan.run if t.plan else t.began.run if t.began else ""
    return clean(known, 60)


# Plan


def shape(plan: events.PlanEvent) -> str:
    """What is trained, and how large it is."""
    return f"{clean(plan.model, 60)}, {format_count(plan.parameters)} parameters"


def schedule(plan: events.PlanEvent) -> str:
    """Number of rounds, and of steps in each."""
    each = plan.steps // plan.rounds if plan.rounds else 0
    return f"{many(plan.rounds, 'round')} of {many(each, 'step')}"


def agreement(plan: events.PlanEvent) -> tuple[str, str]:
    """Who agrees by what, and over how much work."""
    return (f"{many(plan.peers, 'provider')}, synced by {clean(plan.sync, 50)}", f"{format_count(plan.tokens)} tokens")


def committee(plan: events.PlanEvent) -> str:
    """What several validators send to agree on the ledger; empty where there is one."""
    if plan.validators == 1:
        return ""
    down = f"{faults(plan.validators)} may be down" if faults(plan.validators) else "none may be down"
    return f"{plan.validators} validators send {format_bytes(plan.committee_bytes)} more, and {down}"


def price(plan: events.PlanEvent) -> str:
    """What the job may cost, and what is locked for it."""
    buys = f" ({known})" if (known := anchor(plan.unit_price)) else ""
    return f"at most {shown_credits(plan.price)}, {short_credits(plan.escrow)} locked{buys}"


# Train


def speed(closed: events.RoundEndEvent) -> str:
    """Tokens a second that the accepted work of a round makes."""
    return f"{format_count(closed.tokens / closed.seconds)} tokens/s" if closed.seconds > 0 else "? tokens/s"


def total(by: SentBytesByKind) -> int:
    """Bytes of all kinds."""
    return by.sync + by.audit + by.join + by.control + by.relay


def send_rate(t: RunTimeline) -> str:
    """What all processes together sent during the round that closed last; empty before the second."""
    last = t.last_round
    if last is None or last.seconds <= 0 or last.round - 1 not in t.sent_at:
        return ""
    sent = total(t.sent_at[last.round]) - total(t.sent_at[last.round - 1])
    return f"sends {format_rate(8 * max(0, sent) / last.seconds)}"


def exchange(event: events.RoundEndEvent) -> str:
    """How a round's payloads came to everybody, and the seconds of it; empty where that is not known."""
    if not event.way:
        return ""
    way, seconds = clean(event.way, 20), (event.way_predicted, event.way_taken)
    predicted, taken = (f"{each:.2f} s" for each in seconds)
    return f"exchange: {way}, {predicted} predicted, {taken} taken"


def clipped(event: events.RoundEndEvent, t: RunTimeline) -> str:
    """What clipping to the median norm took away of whose contributions; empty where it took nothing."""
    if not event.clipped:
        return ""
    both = zip(event.clipped, event.clipped_shares, strict=False)  # a log may come from a stranger
    most = sorted(both, key=lambda each: (-each[1], each[0]))
    told = ", ".join(f"{named(key, t)} by {f'{share:.0%}' if share >= 0.01 else 'under 1%'}" for key, share in most[:4])
    more = f" and {len(most) - 4} more" if len(most) > 4 else ""
    return f"the merge clipped {told}{more}"


def wait(waiting: RoundWait, now: float, t: RunTimeline) -> str:
    """Whom the open round waits for and since when, or why all take their time."""
    cores = t.plan.cores if t.plan is not None else 0
    count, late = waiting.members, waiting.late
    if waiting.since is None:
        if waiting.phase != "train":
            return f"waiting for all {count} {OWES[waiting.phase]}"
        shared = f": they share {many(cores, 'core')}" if 0 < cores < count else ""
        return f"{many(count, 'worker')} train{shared}" if count != 1 else "1 worker trains"
    behind = max(0.0, now - waiting.since)
    if len(late) > FEW:
        came = count - len(late)
        return f"{came} of {count} {'has' if came == 1 else 'have'} {DONE[waiting.phase]}, the last {behind:.1f} s ago"
    return f"waiting for {peers(late, t, FEW)} {OWES[waiting.phase]}: {behind:.1f} s after the others"


def open_audits(t: RunTimeline) -> tuple[int, ...]:
    """Rounds of the drawn segments without a finding, in order. Nobody looks further into who was caught."""
    return tuple(sorted(key[0] for key in t.drawn if key not in t.audits and key[1] not in t.caught))


def audits_wait(rounds: Sequence[int]) -> str:
    """Why the next round does not open yet."""
    return f"the audits of round {rounds[0]} are not over: {len(rounds)} open"


def homes(event: events.SimulatedHomeEvent) -> str:
    """How many simulated homes there are, and behind which lines and kinds of NAT."""
    kinds = ", ".join(f"{number} {clean(kind, 16)}" for kind, number in Counter(event.routers).items())
    line = f"{event.up:.4g}/{event.down:.4g} Mbit/s, {event.rtt:.4g} ms"
    return f"{many(len(event.names), 'simulated home')} of {line}, NAT {kinds}"


def restarted(event: events.ProcessRestartEvent) -> str:
    """Who died, on what evidence, and what was done."""
    name, why = clean(event.name, 30), clean(event.why, 60)
    return f"{name} died ({why}); started again after {format_seconds(event.seconds)}"


def left(event: events.ProcessExitEvent, t: RunTimeline) -> str:
    """Who is gone, on what evidence, and what that means."""
    return f"{named(event.peer, t)} left: {clean(event.reason, 60)}; {_since(event, t)}"


def _since(event: events.ProcessExitEvent, t: RunTimeline) -> str:
    """Whether it came back."""
    back = t.joined.get(event.peer, 0)
    opened = t.openings.get(back)
    is_back = back > 0 and opened is not None and opened.at >= event.at
    return f"it is back from round {back} on" if is_back else "the others go on without it"


def incidents(t: RunTimeline) -> tuple[tuple[str, str], ...]:
    """Deaths and departures in order of time: who and why, then what came of it. A caught peer's are told elsewhere."""
    known: list[tuple[float, str, str]] = []
    gone = [event for event in t.left if event.peer not in t.caught]
    for again in t.restarted:
        process = t.processes.get(again.name)
        own = [e for e in gone if process is not None and e.peer == process.peer and e.at <= again.at]
        known.append((again.at, restarted(again), _since(own[-1], t) if own else ""))
        gone = [e for e in gone if e not in own[-1:]]
    known += [(e.at, f"{named(e.peer, t)} left: {clean(e.reason, 60)}", _since(e, t)) for e in gone]
    return tuple((who, then) for _, who, then in sorted(known))


def baseline_step(event: events.BaselineProgressEvent) -> str:
    """How far the single-machine baseline is."""
    return f"single-machine baseline: step {event.step}/{event.steps}, loss {event.loss:.3f}"


def baseline_end(event: events.BaselineEvent) -> str:
    """The loss of the single-machine baseline, and how long it took."""
    took = f"{many(event.steps, 'step')} in {format_seconds(event.seconds)}"
    return f"single-machine baseline: {took}, loss {event.loss:.3f}"


# Verify


def excess(audit: events.AuditEndEvent) -> str:
    """How far the claim lies from what verifiers found; empty when it is the same."""
    if audit.excess <= 0:
        return ""
    size = f"{audit.excess:,.0f}" if audit.excess >= 100 else f"{audit.excess:.3g}"
    return f"{size}x the tolerance"


def repeated_by(audit: events.AuditEndEvent, t: RunTimeline) -> str:
    """Who did the work again."""
    return f"repeated by {peers(audit.verifiers, t)}"


def audit_of(caught: events.SlashEvent, t: RunTimeline) -> events.AuditEndEvent | None:
    """The audit that found a peer out."""
    return t.audits.get((caught.round, caught.peer, caught.segment))


def disputes(t: RunTimeline) -> tuple[events.AuditEndEvent, ...]:
    """Audits that did not simply hold at the first verifier, in the order of their end: `--dispute N` counts these."""
    found = [a for a in t.audits.values() if a.finding != HOLDS or len(a.verifiers) > 1]
    return tuple(sorted(found, key=lambda a: (a.at, a.round, a.peer, a.segment)))


def caught_claim(caught: events.SlashEvent, t: RunTimeline) -> str:
    """Who was found out, over what, and how far off it is."""
    audit = audit_of(caught, t)
    off = excess(audit) if audit is not None else ""
    place = f"round {caught.round}, segment {caught.segment}"
    what = f"{place} differs by {off}" if off else f"{clean(caught.why, 40)} ({place})"
    return f"{named(caught.peer, t)} caught cheating: {what}"


def caught_price(caught: events.SlashEvent) -> str:
    """What it cost, or may cost."""
    if caught.pending:
        return f"{shown_credits(caught.pending)} of its stake wait for a dispute"
    return f"it loses {shown_credits(caught.slashed)}"


def bounties(bounty: int, burnt: int) -> str:
    """Where slashed money went."""
    return f"{short_credits(bounty)} to the verifiers, {short_credits(burnt)} burnt"


# Settle and Result


def settled(event: events.LeasePaymentEvent, t: RunTimeline) -> str:
    """What a lease paid, and for what."""
    work = f"{event.units} accepted tokens"
    if not event.paid and event.peer in t.caught:
        return f"{named(event.peer, t)} is paid nothing: its pay for {work} is forfeited"
    return f"{named(event.peer, t)} is paid {shown_credits(event.paid)} for {work}"


def where(began: events.RunStartEvent | None) -> tuple[str, ...]:
    """On which network a run is, the longer text first."""
    if began is None or not began.network:
        return HERE
    name = clean(began.network, 24)
    return f"network {name}: other computers read model and data", f"network {name}"


def conserved(sum: int, began: events.RunStartEvent | None) -> str:
    """Whether money was made or lost: in the whole ledger of a run of its own, in the job on others' network."""
    what = "job" if began is not None and began.network else "ledger"
    return f"{what} balanced (sum 0)" if sum == 0 else f"{what} NOT balanced (sum {sum})"


def gap(result: events.RunResultEvent) -> str:
    """The baseline's loss on the same tokens, and the gap even when it is bad; empty when it was not run."""
    if result.loss_baseline is None or result.loss is None:
        return ""
    apart = result.loss - result.loss_baseline
    return f"single-machine baseline {result.loss_baseline:.3f} (gap {apart:+.3f})"


def unigram(result: events.RunResultEvent) -> str:
    """The least that training must beat: knowing how often each token occurs."""
    if result.loss is not None and result.loss < result.loss_unigram:
        return f"token frequencies alone give {result.loss_unigram:.3f}"
    return f"has not learned yet: token frequencies alone give {result.loss_unigram:.3f}"


def kinds(by: SentBytesByKind) -> str:
    """Bytes by what they were for."""
    return ", ".join(f"{name} {format_bytes(getattr(by, name))}" for name in by.__struct_fields__)


def repeated(event: events.RepeatedRunEvent) -> str:
    """Whether the same job gave the same bits as the time before."""
    name = clean(event.run, 50)
    if not event.differs:
        return f"same as last time: {name}"
    return f"not as last time ({name}): {clean(', '.join(event.differs), 60)} differ"


def stands_on(event: events.LineageEvent) -> tuple[str, ...]:
    """Which run this one goes on from, and how far the chain of such runs goes."""
    behind = len(event.jobs) - 1
    if event.merges:
        how = f"{many(event.merges, 'merge')} recomputed, {many(event.signatures, 'signature')} checked"
    else:
        how = f"a published model: its root {clean(event.root, 16)} is the one on the ledger"
    return (
        f"starts from run {clean(event.run, 50)}, proved in {format_seconds(event.seconds)}",
        how,
        f"it stands on {many(behind, 'run')} itself" if behind else "",
    )


def failed(event: events.RunFailureEvent, t: RunTimeline) -> str:
    """Why there is no result."""
    return f"error[{clean(event.code, 16)}]: {with_names(clean(event.message, 200), t)}"


def warned(event: events.WarningEvent, t: RunTimeline) -> str:
    """What a person should know."""
    return f"warning[{clean(event.code, 16)}]: {with_names(clean(event.message, 200), t)}"


def ways(event: events.PathCountsEvent) -> str:
    """How the peers of a run are connected."""
    known = ", ".join(f"{count} {how}" for name, how in WAYS.items() if (count := getattr(event, name)))
    return f"connections: {known}" if known else "no connections"
