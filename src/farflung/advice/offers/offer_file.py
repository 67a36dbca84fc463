"""Reads a file of offers to plan a job over: hosts with cards, lines, machines and prices (P1).

    [[host]]
    name = "attic"            # any word, each once
    card = "RTX 4090"         # of the table of cards
    cards = 2                 # in this host; 1 where nothing is said
    link = "40/250/20ms"      # Mbit/s up and down, and a round trip
    price = "0.35"            # credits an hour for the whole host
    owner = "ann"             # whose it is: the host's own name where nothing is said
    region = "eu-west"
    cores = 16                # of its processor, memory in GB, PCIe lanes a card: not known where nothing is said
    memory_gb = 64
    disk_gb = 1000            # free on a disk, for states that nothing else has room for: none where nothing is said
    lanes = 16
    churn_hours = 30          # mean time until it leaves
    stake = "20"              # credits that it can put down for its word: 0 where nothing is said
    utilisation = 0.45        # share of its cards' rate that training reaches here, measured; 0.4 where nothing is said
    profile = "attic.toml"    # what was measured on its card, a file beside this one (docs/plan/cards.md); or in place,
                              # profile = { bf16_tflops = 132.0, conditions = "matmul 8192, 60 s" }
    site = "street 7"         # hosts of one site share its line and say the same one; its own where nothing is said
    spare_watts = 300         # that it may draw: its cards run a part of the time
    base_watts = 60           # of that, what its machine draws beside its cards: 0 where nothing is said

Beside them may stand what electricity costs, and what they are held against (advice/offers/energy_terms).

What was measured between two hosts or regions stands beside them as [[pair]] parts (advice/offers/measured_pairs).
An unknown key is refused with the nearest one, for a misspelt bound would be none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import msgspec

from farflung.advice.hardware import card_profile
from farflung.advice.hardware.card import Card, FactorPrecision, with_profile
from farflung.advice.hardware.card_table import CardTable
from farflung.advice.hardware.work_split import PowerSite, alone
from farflung.advice.offers import energy_terms, measured_pairs
from farflung.advice.offers.energy_terms import EnergyTerms
from farflung.core import bounded_toml, limits
from farflung.core.errors import FarflungError, UsageError
from farflung.core.money import Credits, parse_credits
from farflung.core.similar_name import similar_name
from farflung.core.units import Bytes, Seconds
from farflung.plan import link_syntax
from farflung.plan.link_syntax import Link

HOUR: Final = 3600.0
GB: Final = 10**9
MOST: Final = {
    "cards": 64,
    "cores": 4096,
    "memory_gb": 1 << 16,
    "disk_gb": 1 << 20,
    "lanes": 16,
    "churn_hours": 1e6,
    "utilisation": 1.0,
    "spare_watts": 1e6,
    "base_watts": 1e6,
}


def _alone(name: str) -> str:
    """No file stands beside a text."""
    raise UsageError("FF-PLAN-062", f"no profile {name!r} can be read here", hint="give it in place: profile = { ... }")


class OfferedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One machine that is offered. None: not known. `price`: pico-credits an hour; `churn`: mean seconds to leave."""

    name: str
    owner: str
    region: str
    card: Card
    cards: int
    link: Link
    price: Credits
    cores: int | None = None
    memory_bytes: Bytes | None = None
    disk_bytes: Bytes | None = None
    lanes: int | None = None
    churn: Seconds | None = None
    stake: Credits = Credits(0)
    utilisation: float | None = None
    pairs: tuple[measured_pairs.MeasuredPair, ...] = ()  # that speak of it or of its region
    site: str = ""  # hosts of one share its line, of which `link` is this one's part
    line: Link | None = None  # the whole line of a site with more hosts
    spare_watts: float | None = None
    base_watts: float = 0.0

    @property
    def duty(self) -> float:
        """Of the time, how much its cards run within the spare power."""
        own = PowerSite(self.name, ((self.card, self.cards),), self.spare_watts, self.base_watts)
        return alone(own, FactorPrecision.BF16).busy / self.cards


KEYS: Final = (
    "name", "owner", "region", "card", "cards", "link", "price", "cores", "memory_gb", "disk_gb", "lanes",
    "churn_hours", "stake", "utilisation", "profile", "site", "base_watts", "spare_watts",
)  # fmt: skip


def parse(text: str, table: CardTable, read: Callable[[str], str] = _alone) -> tuple[OfferedHost, ...]:
    """The hosts of a file, in its order. `read`: the text of a profile that a host names; what it raises is told.

    Raises UsageError FF-PLAN-060 (no TOML, no host, too many), FF-PLAN-061 with the host and the key that is unknown,
    missing or impossible; and what names of cards, links and amounts of credits raise.
    """
    tree = _tree(text)
    energy_terms.of(tree, table)
    rows = tree.get("host")
    if (
        not {"host"} <= set(tree) <= {"host", "pair", *energy_terms.KEYS}
        or not isinstance(rows, list)
        or not all(isinstance(row, dict) for row in rows)
    ):
        raise _unreadable("it is made of [[host]] parts, [[pair]] parts, [energy] and [reference], and of nothing else")
    if not rows:
        raise _unreadable("nobody offers anything: there is no [[host]] part")
    if len(rows) > limits.OFFERED_HOSTS:
        raise _unreadable(f"it has {len(rows)} hosts, and at most {limits.OFFERED_HOSTS} are looked at")
    hosts: dict[str, OfferedHost] = {}
    for number, row in enumerate(rows, 1):
        host = _OfferFileRow(number, row).host(table, read)
        if host.name in hosts:
            _OfferFileRow(number, row).refuse("name", f"{host.name!r} is another host's, too")
        hosts[host.name] = host
    found = measured_pairs.of(tree.get("pair", []), {host.name: host.region for host in hosts.values()})
    return tuple(
        msgspec.structs.replace(host, pairs=measured_pairs.naming(found, host.name, host.region))
        for host in _shared(tuple(hosts.values()))
    )


def terms_of(text: str, table: CardTable) -> EnergyTerms:
    """What such a file says beside its hosts. Raises what `parse` raises of it."""
    return energy_terms.of(_tree(text), table)


def _tree(text: str) -> dict[str, Any]:
    try:
        return bounded_toml.parse(text, limits.OFFERS_CHARACTERS)
    except ValueError as error:  # whole numbers of thousands of digits are none of TOML's own errors
        raise _unreadable(str(error)[:200]) from None


def _shared(hosts: tuple[OfferedHost, ...]) -> tuple[OfferedHost, ...]:
    """Hosts of one site have equal parts of its line: which of them trains is not known yet, so all are taken to."""
    count = Counter(host.site for host in hosts)
    lines = {host.site: host.link for host in hosts}
    found = []
    for number, host in enumerate(hosts, 1):
        ways, line = count[host.site], lines[host.site]
        if host.link != line:
            shown = {"name": host.name}
            _OfferFileRow(number, shown).refuse(
                "site", f"the hosts of {host.site!r} share a line, and say different ones"
            )
        part = Link(line.up / ways, line.down / ways, line.round_trip)
        found.append(host if ways == 1 else msgspec.structs.replace(host, link=part, line=line))
    return tuple(found)


class _OfferFileRow:
    """One host as it was written."""

    def __init__(self, number: int, fields: Mapping[str, Any]) -> None:
        name = fields.get("name")
        self.called = f"host {number}" + (f" ({name[:40]!r})" if isinstance(name, str) else "")
        self.fields = fields

    def host(self, table: CardTable, read: Callable[[str], str]) -> OfferedHost:
        for key in self.fields:
            if key not in KEYS:
                near = similar_name(key, KEYS)
                self.refuse(key[:40], "no host has that", f'did you mean "{near}"?' if near else "")
        name = self.text("name")
        memory, disk = self.number("memory_gb"), self.number("disk_gb")
        churn = self.number("churn_hours")
        card = self.card(table, read)
        return OfferedHost(
            name=name,
            owner=self.text("owner", name),
            region=self.text("region", ""),
            card=card,
            cards=self.whole("cards") or 1,
            link=self.of("link", link_syntax.parse),
            price=self.of("price", parse_credits),
            cores=self.whole("cores"),
            memory_bytes=None if memory is None else Bytes(round(memory * GB)),
            disk_bytes=None if disk is None else Bytes(round(disk * GB)),
            lanes=self.whole("lanes"),
            churn=None if churn is None else Seconds(churn * HOUR),
            stake=self.of("stake", parse_credits) if "stake" in self.fields else Credits(0),
            utilisation=self.number("utilisation"),
            site=self.text("site", name),
            spare_watts=self.spare(card),
            base_watts=self.number("base_watts") or 0.0,
        )

    def spare(self, card: Card) -> float | None:
        """Watts, of a card whose own are known: nobody can say else how long it runs."""
        found = self.number("spare_watts")
        if found is not None and card.power[0] is None:
            self.refuse("spare_watts", f"the power of {card.name} is not known: say its watts in a profile")
        if found is not None and found <= (self.number("base_watts") or 0.0):
            self.refuse("spare_watts", "its machine alone draws as much")
        return found

    def card(self, table: CardTable, read: Callable[[str], str]) -> Card:
        """The table's, with what was measured on it where that is said."""
        found: Card = self.of("card", table.find)
        said = self.fields.get("profile")
        if said is None:
            return found
        if isinstance(said, Mapping):
            own = self.told("profile", lambda: card_profile.of({"card": found.name, **said}))
        else:
            own = self.of("profile", lambda name: card_profile.parse(read(name)))
        known = self.told("profile", lambda: table.find(own.card))
        if known != found:
            self.refuse("profile", f"it was measured on {known.name}, and this host has {found.name}")
        return with_profile(found, own)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if value is None:
            self.refuse(key, "it is missing")
        if not isinstance(value, str) or len(value) > limits.OFFER_NAME_CHARACTERS or not value.isprintable():
            self.refuse(key, f"it is a text in quotes of at most {limits.OFFER_NAME_CHARACTERS} characters")
        if default is None and not value.strip():
            self.refuse(key, "it is empty")
        return value

    def of(self, key: str, read: Any) -> Any:
        """What a text means; which host it is of is said in front of what is wrong with it."""
        text = self.text(key)
        return self.told(key, lambda: read(text))

    def told(self, key: str, read: Callable[[], Any]) -> Any:
        """What is read, with the host in front of what is wrong with it."""
        try:
            return read()
        except FarflungError as error:
            cause = f"{error.message}: {error.cause}" if error.cause else error.message
            self.refuse(key, cause, error.hint)

    def number(self, key: str) -> float | None:
        value = self.fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST[key]:
            self.refuse(key, f"it is a number above 0 and at most {MOST[key]:g}; not known: leave it out")
        return float(value)

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        if value is not None and value != int(value):
            self.refuse(key, "it is a whole number")
        return None if value is None else int(value)

    def refuse(self, key: str, cause: str, hint: str = "") -> NoReturn:
        energy_terms.refuse(self.called, key, cause, hint)


def _unreadable(cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-060", "the offers cannot be read", cause=cause, hint="docs/plan/advise.md shows a file of offers"
    )
