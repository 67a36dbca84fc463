"""Chooses the method that suits given links, with its local steps and density, and gives the reasons.

    on a local network                dense, else demo: every step agrees, nothing drifts
    else, upload of 20 Mbit/s and up  muloco, dense 2-bit: the best loss at its bytes
    or, where that does not fit       muloco still, unless sparse_loco is cheaper when the loss of both is priced
    else                              sparse_loco, as dense as what is left allows
    where that does not fit either    the same two a round late (sync.delay): hidden behind the next round's compute

H is the smallest of methods.STEPS that a round may have whose exchange takes at most methods.ENOUGH of a round. Where
nothing fits the least bad is named, with what binds and what would help. Loss is priced in time: a method whose loss
is expected x % above the best dense run's counts as x % slower (method_loss_table.expected).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from farflung.advice.method_costs import (
    ENOUGH,
    TOPKS,
    TRIPS,
    MethodEstimate,
    MethodSetting,
    estimate,
    estimates,
    least,
    shortest,
)
from farflung.advice.method_loss_table import expected
from farflung.core.units import format_bytes, format_multiple, format_rate, format_seconds
from farflung.job.methods.registry import with_role
from farflung.job.methods.sync_method import LinkRole
from farflung.plan.link_syntax import LAN_RATE, LAN_TRIP

NARROW: Final = 20e6  # bit/s of upload below which dense payloads are not tried
DENSE: Final = with_role(LinkRole.BROAD)[0].name
SPARSE: Final = with_role(LinkRole.NARROW)[0].name


class MethodChoice(msgspec.Struct, frozen=True):
    """All methods on these links, the one that suits them, and why, in sentences. `fits`: one does."""

    setting: MethodSetting
    methods: tuple[MethodEstimate, ...]
    chosen: MethodEstimate
    reasons: tuple[str, ...]
    fits: bool


def choose(setting: MethodSetting) -> MethodChoice:
    """The method for these links. Pure: the same setting gives the same choice."""
    rows = {row.method: row for row in estimates(setting)}
    first = _on_lan(setting, rows) or _dense(setting, rows) or _worth_it(setting, rows) or _sparse(setting, rows)
    found = first or _late(setting)
    chosen, reasons = found or _least_bad(setting)
    shown = tuple(chosen if name == chosen.method else row for name, row in rows.items())
    return MethodChoice(setting, shown, chosen, (*reasons, *_paying(chosen)), found is not None)


_Found = tuple[MethodEstimate, tuple[str, ...]]


def _on_lan(setting: MethodSetting, rows: dict[str, MethodEstimate]) -> _Found | None:
    if not setting.link.is_lan:
        return None
    near = f"a local network: {format_rate(LAN_RATE)} or more, {1e3 * LAN_TRIP:g} ms or less there and back"
    for name in (method.name for method in with_role(LinkRole.LOCAL) if method.name in rows):
        if rows[name].fits:
            return rows[name], (f"{name} agrees after every step, and these links carry it: {near}",)
    return None


def _dense(setting: MethodSetting, rows: dict[str, MethodEstimate]) -> _Found | None:
    found = rows[DENSE]
    if setting.link.up < NARROW or not found.fits:
        return None
    why = f"{DENSE} loses least at its bytes, and fits where the upload is {format_rate(NARROW)} or more"
    return found, (why, _steps(setting, found))


def _worth_it(setting: MethodSetting, rows: dict[str, MethodEstimate]) -> _Found | None:
    """Dense payloads that take more of a round, where what they save in loss is worth more than their time."""
    if setting.link.up < NARROW or not rows[SPARSE].fits:
        return None
    sparse = _densest(setting, rows[SPARSE])
    tried = [estimate(setting, msgspec.structs.replace(rows[DENSE].sync, steps=steps)) for steps in setting.steps]
    dense = min(tried, key=_priced)
    if _priced(sparse) <= _priced(dense):
        return None
    why = (
        f"{DENSE}: its exchange takes {_percent(dense.share)} of a round at H = {dense.sync.steps}, {SPARSE}'s"
        f" {_percent(sparse.share)} at H = {sparse.sync.steps}; but its loss is expected {expected(dense.sync):.0f} %"
        f" above the best dense run's, and {SPARSE}'s {expected(sparse.sync):.0f} %"
    )
    priced = (
        f"where 1 % of loss counts as 1 % of time a step costs {_priced(dense):.3g} s with {DENSE}, and"
        f" {_priced(sparse):.3g} s with {SPARSE}"
    )
    return dense, (why, priced)


def _priced(row: MethodEstimate) -> float:
    """Seconds a step, with its expected loss as time."""
    return row.step * (1 + expected(row.sync) / 100)


def _sparse(setting: MethodSetting, rows: dict[str, MethodEstimate]) -> _Found | None:
    found = rows[SPARSE]
    if not found.fits:
        return None
    if setting.link.up < NARROW:
        why = f"{SPARSE}: the upload is below {format_rate(NARROW)}, where few bytes matter most"
    else:
        dense = rows[DENSE]
        spent = f"{_percent(dense.share)} of a round on exchange at H = {dense.sync.steps}"
        why = f"{SPARSE}: {DENSE} would spend {spent}"
    denser = _densest(setting, found)
    return denser, (why, _steps(setting, denser), _density(denser))


def _late(setting: MethodSetting) -> _Found | None:
    """Hidden behind the compute of the round after."""
    names = (DENSE, SPARSE) if setting.link.up >= NARROW else (SPARSE,)
    for name in names:
        found = shortest(setting, name, delay=1, **least(name))
        if found.fits:
            denser = _densest(setting, found) if name == SPARSE else found
            why = (
                f"{name} a round late: neither {DENSE} nor {SPARSE} brings its exchange below {_percent(ENOUGH)} of a"
                f" round with H up to {setting.steps[-1]}, so what a round sends is applied after the next one"
            )
            hidden = (
                f"H = {found.sync.steps} is the smallest at which the exchange hides behind compute:"
                f" {format_seconds(denser.exchange)} beside {format_seconds(denser.compute)}"
            )
            return denser, (why, hidden, *([_density(denser)] if name == SPARSE else []))
    return None


def _least_bad(setting: MethodSetting) -> _Found:
    found = shortest(setting, SPARSE, delay=1, **least(SPARSE))
    return found, (_binding(setting, found), _helping(setting, found))


def _densest(setting: MethodSetting, found: MethodEstimate) -> MethodEstimate:
    """As many coefficients as still fit at the same H."""
    for topk in TOPKS[1:]:
        denser = estimate(setting, msgspec.structs.replace(found.sync, topk=topk))
        if not denser.fits:
            break
        found = denser
    return found


def _steps(setting: MethodSetting, found: MethodEstimate) -> str:
    tried = ", ".join(map(str, setting.steps))
    return (
        f"H = {found.sync.steps} is the smallest of {tried} whose exchange takes at most {_percent(ENOUGH)} of a round:"
        f" {format_seconds(found.exchange)} beside {format_seconds(found.compute)} of compute"
    )


def _density(found: MethodEstimate) -> str:
    sync = found.sync
    most = "the most that is tried" if sync.topk == TOPKS[-1] else "the most that still fits"
    return f"{sync.topk} of {sync.chunk} coefficients: {most} of {', '.join(map(str, TOPKS))}"


def _paying(found: MethodEstimate) -> tuple[str, ...]:
    """The metric, in words."""
    moved = f"a peer sends {format_bytes(found.up)} and receives {format_bytes(found.down)} a step"
    less = "times fewer than" if found.ring >= 1 else "times (so more than)"
    return (f"{moved}: {format_multiple(found.ring)} {less} in a bf16 ring all-reduce among as many peers",)


def _binding(setting: MethodSetting, found: MethodEstimate) -> str:
    """What keeps even the least dense method from fitting."""
    parts = {
        f"the upload of {format_rate(setting.link.up)}": found.uploading,
        f"the download of {format_rate(setting.link.down)}": found.downloading,
        f"the round trip of {1e3 * setting.link.round_trip:g} ms": TRIPS * setting.link.round_trip,
    }
    what, seconds = max(parts.items(), key=lambda part: part[1])
    sync = found.sync
    return (
        f"nothing fits: {SPARSE} at H = {sync.steps} and {sync.topk} of {sync.chunk} exchanges for"
        f" {format_seconds(found.exchange)} beside {format_seconds(found.compute)} of compute; what binds is {what},"
        f" {format_seconds(seconds)}"
    )


def _helping(setting: MethodSetting, found: MethodEstimate) -> str:
    """What would make it fit."""
    room = found.compute - TRIPS * setting.link.round_trip
    if room <= 0:
        return f"what helps: more compute in a round (a larger batch), at least {format_seconds(found.exchange)}"
    rates = []
    if found.uploading > room:
        rates.append(f"{format_rate(setting.link.up * found.uploading / room)} up")
    if found.downloading > room:
        rates.append(f"{format_rate(setting.link.down * found.downloading / room)} down")
    helps = [" and ".join(rates)]
    fewer = math.floor(setting.peers * room / max(found.uploading, found.downloading))
    if fewer >= 2:
        helps.append(f"{fewer} peers instead of {setting.peers}")
    fanned = estimate(msgspec.structs.replace(setting, is_fanned_out=True), found.sync)
    if fanned.fits and not setting.is_fanned_out:
        helps.append("a server that fans out what is sent to it once (--fan-out)")
    return f"what helps: {', or '.join(helps)}; or a larger batch, or a smaller model"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
