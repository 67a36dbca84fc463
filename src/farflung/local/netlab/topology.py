"""Computes the topology of an emulated network: its nodes, cables and addresses, as names and text only.

    h1, h1.2 --bridge-- r1 ==line== c1 (a carrier's NAT) --veth-- bb --veth-- s1, s2 ...
    h2 ------bridge---- r2 ==line======================---------- bb

h: hosts of a home (h1 is its first, h1.2 its second), r: its router, c: a carrier's router, bb: backbone, s: servers.
Public addresses are of 198.18.0.0/15, which RFC 2544 keeps for laboratories, those behind a carrier of RFC 6598's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from farflung.core.errors import UsageError
from farflung.local.netlab import nat_rules
from farflung.local.netlab.homes import MAX_CARRIERS, MAX_HOMES, MAX_SERVERS, EmulatedHome, NatType

CARRIERS_FROM = 200  # the number of a carrier's network is this and its own
_FIRST_ADDRESS, _LAST_ADDRESS = 2, 100  # that a provider gives to one router
_WHO = re.compile(r"([hrcs])([1-9]\d{0,2})(?:\.([1-9]\d?))?")


class LabTopology:
    """The places of `homes` (numbered from 1), `servers` on the backbone, and a router for each of `carriers`.

    Raises UsageError FF-LAB-005 for what does not fit together, and for a name that nobody here has.
    """

    def __init__(self, homes: Sequence[EmulatedHome], servers: int, carriers: Sequence[NatType]) -> None:
        self.homes, self.servers, self.carriers = list(homes), servers, list(carriers)
        limits = (
            (len(self.homes), MAX_HOMES, "homes"),
            (servers, MAX_SERVERS, "servers"),
            (len(self.carriers), MAX_CARRIERS, "carriers"),
            (max((home.carrier for home in self.homes), default=0), len(self.carriers), "carriers"),
        )
        for asked, most, what in limits:
            if not 0 <= asked <= most:
                raise UsageError("FF-LAB-005", f"the laboratory does not have {asked} {what}", hint=f"at most {most}")
        self._given = dict.fromkeys(range(1, len(self.homes) + 1), _FIRST_ADDRESS)

    @property
    def everybody(self) -> list[str]:
        """The names of all places."""
        places = ["bb", *(f"s{n + 1}" for n in range(self.servers)), *(f"c{n + 1}" for n in range(len(self.carriers)))]
        for number, home in enumerate(self.homes, 1):
            places += [f"r{number}", f"h{number}", *(f"h{number}.{host}" for host in range(2, home.hosts + 1))]
        return places

    def address(self, who: str) -> str:
        """Where `who` is reached by its neighbours: a host on its LAN, a router on its outer side."""
        self.check(who)
        match = _WHO.fullmatch(who)
        if match is None:
            raise UsageError("FF-LAB-005", f"{who} has no address of its own", hint="ask for a server, router or host")
        kind, number, host = match[1], int(match[2]), int(match[3] or 1)
        if kind == "s":
            return f"198.19.{number}.2"
        if kind == "c":
            return f"198.18.{CARRIERS_FROM + number}.2"
        if kind == "r":
            return f"{self._upstream(number)}.{self._given[number]}"
        lan, first, _ = self._lan(number)
        return f"{lan}.{first + host}"

    def second_address(self, server: int) -> str:
        """Another address of a server: who asks it from there sees whether a NAT maps by destination."""
        return self.address(f"s{server}").removesuffix("2") + "3"

    def public_address(self, home: int) -> str:
        """What servers see of a home."""
        of = self.home(home)
        if of.carrier:
            return self.address(f"c{of.carrier}")
        return self.address(f"h{home}" if of.nat is NatType.NONE else f"r{home}")

    def check(self, who: str) -> None:
        """Raises UsageError FF-LAB-005 if nobody is called so."""
        if who not in self.everybody:
            raise UsageError("FF-LAB-005", f"nobody in the laboratory is called {who}", hint=", ".join(self.everybody))

    def home(self, number: int) -> EmulatedHome:
        """The home of that number."""
        if not 1 <= number <= len(self.homes):
            raise UsageError("FF-LAB-005", f"the laboratory has no home {number}", hint=f"1 to {len(self.homes)}")
        return self.homes[number - 1]

    def _lan(self, number: int) -> tuple[str, int, int]:
        """The network of a home's hosts: its first three bytes, what to add a host's number to, and its length."""
        if self.home(number).nat is NatType.NONE:
            return f"198.18.{number}", 128, 25
        return f"192.168.{number}", 1, 24

    def _upstream(self, number: int) -> str:
        return f"100.64.{number}" if self.home(number).carrier else f"198.18.{number}"

    def provider(self, home: int) -> str:
        """The router at the other end of a home's line."""
        return f"c{self.home(home).carrier}" if self.home(home).carrier else "bb"

    def gateway(self, home: int) -> str:
        """The provider's address on a home's line."""
        return f"{self._upstream(home)}.1"

    def nats(self) -> list[tuple[str, NatType]]:
        """Every router that may do NAT, and its kind."""
        at_homes = [(f"r{n}", home.nat) for n, home in enumerate(self.homes, 1)]
        return at_homes + [(f"c{n}", nat) for n, nat in enumerate(self.carriers, 1)]

    def move(self, home: int) -> tuple[str, str]:
        """Gives a home's router the next address; returns that before and that after. UsageError FF-LAB-007."""
        before = self.address(f"r{home}")
        if self.home(home).nat is NatType.NONE or self._given[home] == _LAST_ADDRESS:
            raise UsageError(
                "FF-LAB-007",
                f"home {home} has no other public address",
                cause="its hosts have public addresses themselves, or it had too many already",
                hint="take a home with a NAT",
            )
        self._given[home] += 1
        return before, self.address(f"r{home}")

    def cables(self) -> list[tuple[str, str, str, str]]:
        """Every veth pair: who, its device, and the same of the other end."""
        pairs = [(f"s{n}", "eth0", "bb", f"server{n}") for n in range(1, self.servers + 1)]
        pairs += [(f"c{n}", nat_rules.WAN, "bb", f"carrier{n}") for n in range(1, len(self.carriers) + 1)]
        for number, home in enumerate(self.homes, 1):
            pairs.append((f"h{number}", "eth0", f"r{number}", "port1"))
            pairs += [(f"h{number}.{k}", "eth0", f"r{number}", f"port{k}") for k in range(2, home.hosts + 1)]
        return pairs

    def addresses(self) -> dict[str, list[str]]:
        """What `ip` is told in each place: addresses, routes, and that the devices are up."""
        told: dict[str, list[str]] = defaultdict(list)
        for who in self.everybody:
            told[who].append("link set lo up")
        told["bb"].append("route add blackhole default")  # what nobody has is lost, and nobody is told
        for n in range(1, self.servers + 1):
            mine, second, gate = self.address(f"s{n}"), self.second_address(n), f"198.19.{n}.1"
            told["bb"] += _end(f"server{n}", [f"{gate}/24"])
            told[f"s{n}"] += [
                *_end("eth0", [f"{mine}/24", f"{second}/24"], train=max((h.train for h in self.homes), default=1)),
                f"route add default via {gate}",
            ]
        for n in range(1, len(self.carriers) + 1):
            mine = self.address(f"c{n}")
            gate = mine.removesuffix("2") + "1"
            told["bb"] += _end(f"carrier{n}", [f"{gate}/24"])
            told[f"c{n}"] += [*_end(nat_rules.WAN, [f"{mine}/24"]), f"route add default via {gate}"]
        for number in range(1, len(self.homes) + 1):
            self._home_addresses(number, told)
        return told

    def _home_addresses(self, number: int, told: dict[str, list[str]]) -> None:
        home, router, provider = self.home(number), f"r{number}", self.provider(number)
        (lan, first, length), mine = self._lan(number), self.address(router)
        gate, theirs = f"{lan}.254", self.gateway(number)
        for host in range(1, home.hosts + 1):
            who = f"h{number}" if host == 1 else f"h{number}.{host}"
            told[who] += [
                *_end("eth0", [f"{self.address(who)}/{length}"], train=home.train),
                f"route add default via {gate}",
            ]
        told[router] += ["link add lan type bridge", *_end("lan", [f"{gate}/{length}"])]
        for host in range(1, home.hosts + 1):
            told[router] += [f"link set port{host} master lan", f"link set port{host} up"]
        told[router] += _end(nat_rules.WAN, [f"{mine} peer {theirs}"], home.mtu)
        told[router].append(f"route add default via {theirs}")
        told[provider] += _end(f"home{number}", [f"{theirs} peer {mine}"], home.mtu)
        if home.nat is NatType.NONE:
            told[provider].append(f"route add {lan}.{first}/{length} via {mine}")


def _end(device: str, addresses: Sequence[str], mtu: int = 0, train: int = 1) -> list[str]:
    """One end of a cable, with its addresses."""
    size = f" mtu {mtu} txqueuelen 10000" if mtu else ""  # of a line: only the emulator may drop packets
    if train > 1:
        size += f" gso_max_segs {train}"
    return [*(f"addr add {address} dev {device}" for address in addresses), f"link set {device} up{size}"]
