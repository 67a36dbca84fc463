"""Implements the command `lend`: this computer works on a network's jobs, one after the other, until it is told."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from farflung.app.cli.lend_account import AccountFunds, NodeMoney
from farflung.app.cli.lend_jobs import show_jobs
from farflung.app.cli.lend_screen import LendChannel, StepLines, run_nodes, with_clock
from farflung.app.cli.money_options import LeastPrice, LeastPriceParam
from farflung.app.cli.systemd_unit import user_units, write_unit
from farflung.core import limits
from farflung.core.errors import FarflungError, UsageError
from farflung.core.io.extras import require
from farflung.core.money import MICRO, format_credits
from farflung.core.units import Seconds, format_bytes, format_seconds
from farflung.host.io import device_probe, machine_probe, sandbox_tiers
from farflung.peers.network import network_file
from farflung.peers.network.account import own_account
from farflung.peers.network.join import KnownNetwork, join
from farflung.peers.node import home as homes
from farflung.peers.node import provider, verifier
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.control import ControlSocket, ask
from farflung.peers.process.config import read_role_config, write_role_config
from farflung.peers.protocol.directory import NodeOwner
from farflung.plan.device_choice import CPU
from farflung.watch.phrases import many

ORDERS: Final = ("status", "pause", "resume", "leave")
NOTED_PRICE: Final = 1000 * MICRO  # a token; who asks more than this may have meant micro-credits
_ASK: Final = "For a token; N,outcome=N,module=N: by class."
_GB: Final = 10**9


class LendOptions(NamedTuple):
    """What the owner gives."""

    audit: bool = False
    slot: int = 1
    slots: int = 1
    name: str = ""
    host: str = ""
    port: int = 0
    cores: int = 0
    memory_gb: float = 0.0
    disk_gb: float = 2.0
    least_price: LeastPrice = LeastPrice(MICRO)
    allow_modules: bool = False
    drawn_only: bool = False
    data_gb: float = 1.0
    device: str = CPU

    @property
    def role(self) -> str:
        """The first word of its home's folder."""
        return homes.ROLES[self.audit]

    def each_slot(self) -> list[LendOptions]:
        """The options of each node that is started: cores, memory and ports are shared out."""
        if self.slots == 1:
            return [self]
        cores, memory = self.cores or machine_probe.cores(), self.memory_gb or machine_probe.memory_bytes() / _GB
        if (last := self.slot + self.slots - 1) > homes.SLOTS:
            raise click.UsageError(f"slot {last} is too high: a computer has {homes.SLOTS} slots of a role")
        own = self._replace(slots=1, cores=max(1, cores // self.slots), memory_gb=memory / self.slots)
        ports = range(self.port, self.port + self.slots) if self.port else [0] * self.slots
        return [own._replace(slot=self.slot + i, port=port) for i, port in enumerate(ports)]

    def words(self) -> list[str]:
        """The same, as flags of the command."""
        told: list[str] = []
        for name, value in self._asdict().items():
            flag = f"--{name.replace('_gb', '-gb').replace('_', '-')}".replace("--memory-gb", "--memory")
            if value is True:
                told.append(flag)
            elif value != self._field_defaults[name]:
                told += [flag, str(value)]
        return told


@click.command(epilog="Example: farflung lend INVITE --cores 4")
@click.argument("words", nargs=-1, metavar="[INVITE|NAME | jobs|status|pause|resume|leave]")
@click.option("--audit", is_flag=True, help="Check others' work instead of training.")
@click.option("--slot", default=1, type=click.IntRange(1, homes.SLOTS), help="One more node, beside slot 1.")
@click.option("--slots", default=1, type=click.IntRange(1, 16), help="Nodes at a time, one job each.")
@click.option("--name", default="", metavar="TEXT", help="Of this node, in lines and logs.")
@click.option("--host", default="", metavar="ADDRESS", help="A public address of this computer: no relay is used.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="To listen on, with --host. 0: any.")
@click.option("--cores", default=0, type=click.IntRange(0, 1024), help="For a job. 0: all.")
@click.option("--memory", "memory_gb", default=0.0, type=click.FloatRange(0), metavar="GB", help="For a job. 0: all.")
@click.option("--disk-gb", default=2.0, show_default=True, type=click.FloatRange(0), metavar="GB", help="Kept free.")
@click.option("--least-price", default="0.000001", type=LeastPriceParam(), metavar="CREDITS", help=_ASK)
@click.option("--allow-modules", is_flag=True, help="Run models of foreign Python, in the sandbox.")
@click.option("--drawn-only", is_flag=True, hidden=True, help="No jobs whose requester named the verifiers.")
@click.option("--data-gb", default=1.0, hidden=True, type=click.FloatRange(0), help="Of a job's data, kept on disk.")
@click.option("--device", default=CPU, hidden=True, metavar="DEVICE", help="auto, cpu, cuda, cuda:N, mps, xpu.")
@click.option("--service", is_flag=True, help="Write a systemd user unit and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def lend(words: tuple[str, ...], service: bool, as_json: bool, **given: Any) -> None:
    """Lend this computer to a network's jobs, until Ctrl-C.

    Credits are worth nothing until the network's operator says otherwise.
    """
    options = LendOptions(**given)
    if words and words[0] in ORDERS:
        _order(words[0], words[1] if len(words) > 1 else "", as_json=as_json)
        return
    if words and words[0] == "jobs":
        show_jobs(words[1] if len(words) > 1 else "", audit=options.audit, as_json=as_json, slot=options.slot)
        return
    if len(words) > 1:
        raise UsageError("FF-APP-001", "farflung lend takes one invitation or name", hint="farflung lend --help")
    require("torch")
    options = options._replace(device=device_probe.usable(options.device))
    named = words[0] if words else _only_network()
    if service:
        _write_service(named, options)
        return
    lines = StepLines(as_json=as_json)
    asyncio.run(_lend(named, options, lines))


def _only_network() -> str:
    known = network_file.remembered()
    if len(known) == 1:
        return known[0]
    raise UsageError(
        "FF-APP-585",
        "it is not clear which network to lend to",
        cause=f"known networks: {', '.join(known)}" if known else "this computer has joined no network",
        hint="farflung lend NAME" if known else "farflung lend INVITE, with the invitation of a network's operator",
    )


def _order(verb: str, network: str, *, as_json: bool) -> None:
    """Sends an order to each node that runs here. Raises RunError FF-APP-582 where none does."""
    found = homes.known_homes(network)
    answers, last = [], None
    for home in found:
        try:
            answers.append((home, ask(home / homes.SOCKET, {"do": verb})))
        except FarflungError as error:
            last = error
    if not answers:
        raise last or UsageError(
            "FF-APP-586",
            "this computer lends to no network" + (f" {network[:60]!r}" if network else ""),
            cause="there is no node's folder",
            hint="farflung lend INVITE",
        )
    for home, said in answers:
        slot = home.name.partition("-")[2]
        role = ("verifier" if homes.is_verifier(home) else "provider") + (f" {slot}" if slot else "")
        place = f"{home.parent.name} ({role})"
        text = f"{said['state']}, up {format_seconds(Seconds(said['seconds']))}, pid {said['pid']}"
        if said["job"]:
            text += f", job {said['job'][:8]} round {said['round']}"
        text += f", paid {format_credits(said['paid'])} credits"
        shown = msgspec.json.encode({"network": home.parent.name, "role": home.name, **said}).decode()
        sys.stdout.write((shown if as_json else f"{place}: {text}") + "\n")
        if said["warning"] and not as_json:
            sys.stdout.write(f"  last warning: {said['warning']}\n")


async def _lend(named: str, options: LendOptions, lines: StepLines) -> None:
    known, took = await lines.wait("network", "asking its seats", join(named))
    relays = len(known.relays)
    text = f"{known.name}: {many(len(known.seats), 'seat')}, {many(relays, 'relay')}, chain {known.chain.hex()[:8]}"
    lines.say("network", with_clock(text, took), name=known.name, chain=known.chain.hex())
    for each in (*known.notes, *([known.card.message] if known.card.message else [])):
        lines.say("note", each, text=each)
    if said := price_note(options.least_price.standing):
        lines.say("note", said, least_price=options.least_price.standing)
    started = options.each_slot()
    places = [homes.home_of(known.name, own.role, own.slot) for own in started]
    with contextlib.ExitStack() as stack:
        for home in places:
            stack.enter_context(homes.held(home))
        flops = await _measured(places[0], options, lines)
        account, configs = own_account(), []
        funds = AccountFunds(known, account, named, lines)
        try:
            for number, (own, home) in enumerate(zip(started, places, strict=True)):
                key, money = await funds.put_behind(home, own.role, own.slot, len(started) - number)
                owner = NodeOwner.of(account, key.public)
                configs.append(_configured(known, own, home, flops, money, owner))
        finally:
            await funds.close()
        shown = [lines.of_slot(own.slot) if len(started) > 1 else lines for own in started]
        channels = [LendChannel(home, own) for home, own in zip(places, shown, strict=True)]
        await _work(channels, configs, verifier.main if options.audit else provider.main)


async def _work(
    channels: Sequence[LendChannel],
    configs: Sequence[NodeConfig],
    role: Callable[[NodeConfig, LendChannel], Coroutine[Any, Any, None]],
) -> None:
    """All nodes lend until each is told to end; their owner's other commands reach them meanwhile."""
    async with contextlib.AsyncExitStack() as stack:
        for channel, config in zip(channels, configs, strict=True):
            control = ControlSocket(channel.home / homes.SOCKET, channel.answer)
            await control.open()
            stack.push_async_callback(control.close)
            where, staked = "at its own address" if config.host else "at relays", format_credits(config.stake)
            facts = {"stake": config.stake, "node": config.key.public.hex()}
            channel.lines.say("ledger", f"registering {where}, {staked} credits at stake", **facts)
        await run_nodes(channels, [role(*each) for each in zip(configs, channels, strict=True)])


async def _measured(home: Path, options: LendOptions, lines: StepLines) -> int:
    """What this machine has, in one line; FLOP/s of one core."""
    rate, took = await lines.wait("machine", "measuring", asyncio.to_thread(machine_probe.sgemm_flops))
    cores = options.cores or machine_probe.cores()
    memory, free = machine_probe.memory_bytes(), machine_probe.disk_bytes(home)
    tier = sandbox_tiers.strongest().name
    text = f"{cores} cores of {rate / 1e9:.0f} GFLOP/s, {format_bytes(memory)}, disk {format_bytes(free)}, {tier}"
    facts = {"cores": cores, "flops": int(rate), "memory_bytes": memory, "disk_bytes": free, "tier": tier}
    lines.say("machine", with_clock(text, took), **facts)
    floor = int(options.disk_gb * _GB)
    if free < floor:
        said = f"takes no job until {format_bytes(floor)} are free where {home} lies (--disk-gb)"
        lines.say("note", said, disk_bytes=free, floor=floor)
    return int(rate)


def _configured(
    known: KnownNetwork, options: LendOptions, home: Path, flops: int, money: NodeMoney, owner: NodeOwner
) -> NodeConfig:
    """The node's configuration, written and read as any other process of the role would."""
    host, relays = options.host, known.relays[: limits.PLACES]
    is_own = all(_is_loopback(seat.host) for seat in known.seats)  # the whole network is on this computer
    if not host and not relays and is_own:
        host = "127.0.0.1"
    values = {
        "name": (options.name or ("verifier" if options.audit else "provider"))
        + (f"-{options.slot}" if options.slot > 1 else ""),
        "key": str(homes.key_file(home)),
        "owner": owner.account.hex(),
        "fees": money.fees,
        "genesis": str(network_file.networks_folder() / f"{known.name}.genesis"),
        "folder": "data",
        "unit_price": options.least_price.standing,
        "outcome_price": options.least_price.prices.outcome,
        "module_price": options.least_price.prices.module,
        "stake": money.stake,
        "flops": flops,
        "host": host,
        "port": options.port,
        "cores": options.cores,
        "memory_bytes": int(options.memory_gb * _GB),
        "disk_floor": int(options.disk_gb * _GB),
        "data_cache": int(options.data_gb * _GB),
        "allow_modules": options.allow_modules,
        "drawn_only": options.drawn_only,
        "device": options.device,
        # On a network that is on one computer its owner is everybody, as in a local run.
        **({} if is_own else {"claims": f"../{homes.CLAIMS}", "owner_signature": owner.signature.hex()}),
        "ledger": known.ledger,
        "relays": () if host else relays,
    }
    return read_role_config(write_role_config(home / homes.CONFIG, values), NodeConfig)


def price_note(price: int) -> str:
    """What an owner hears of an ask that jobs hardly pay; empty: it is a usual one."""
    if price <= NOTED_PRICE:
        return ""
    asks, usual = format_credits(price), format_credits(MICRO)
    return f"asks {asks} credits a token (--least-price is in credits); a job offers {usual} by default"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_service(named: str, options: LendOptions) -> None:
    """A systemd user unit. An invitation is joined first, so that the unit holds a name and no token."""
    known = asyncio.run(join(named))
    unit = f"farflung-{options.role}-{known.name}" + (f"-{options.slot}" if options.slot > 1 else "")
    words = ("lend", known.name, *options.words())
    for line in write_unit(unit, f"farflung {options.role} to the network {known.name}", words, user_units()):
        sys.stdout.write(f"{line}\n")
