"""Implements `network open` and `network invite`: runs a network's seat and relay, and prints invitations to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.cli.systemd_unit import write_unit
from farflung.core.errors import FarflungError, RunError
from farflung.core.events import AnyEvent, ProcessRestartEvent
from farflung.core.ids import short
from farflung.core.io.extras import require
from farflung.local.network.restarts import ProcessSupervisor, SupervisedProcess
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.network import operator_folder
from farflung.peers.network.faucet import new_token
from farflung.peers.network.invitation import write
from farflung.peers.network.operator_folder import NetworkPlaces, OperatorFolder, default_folder, listen_at
from farflung.peers.process.channel import LEDGER, RELAY, Report
from farflung.peers.process.child import ChildProcess
from farflung.peers.validator.config import PORT

WORTH: Final = "Its credits are worth nothing until its operator says otherwise."
DAY_SECONDS: Final = 86_400
FOLDER = click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def say(as_json: bool, facts: dict[str, Any], text: list[str]) -> None:
    """An answer, as an object or as lines."""
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else "\n".join(text)) + "\n")
    sys.stdout.flush()


class _OpenNetwork:
    """What the supervisor asks of an open network: nobody in it may be missed."""

    def heard(self, child: ChildProcess, said: Report) -> None:
        """Notes are for the operator."""
        if said.get("kind") == "note":
            sys.stderr.write(f"{child.name}: {said.get('text')}\n")

    def died(self, name: str, why: str, failure: FarflungError | None) -> bool:
        """Whoever died without a word is started again; whoever said why would say the same again."""
        if failure is not None:
            raise RunError(failure.code, failure.message, cause=failure.cause, hint=failure.hint)
        return True

    def may_miss(self, name: str, why: str) -> bool:
        """Without the seat there is no ledger, and without the relay nobody behind a router."""
        return False

    async def revived(self, child: ChildProcess) -> None:
        """It is as it was: all of its state is in its folder."""

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """A restart is said on standard error."""
        if isinstance(event, ProcessRestartEvent):
            sys.stderr.write(f"{event.name} was started again after {event.seconds:.1f} s: {event.why}\n")


@click.command("open", epilog="Example: farflung network open --host net.example", short_help="Run a network.")
@FOLDER
@click.option("--host", help=f"Name or address that others reach. A new one's default: {LOOPBACK}.")
@click.option("--port", type=click.IntRange(1, 65534), default=PORT, show_default=True, help="The relay has the next.")
@click.option("--name", default="commons", show_default=True, help="Of a new network.")
@click.option("--verifier", is_flag=True, help="Run a verifier as well: farflung lend --audit. Needs PyTorch.")
@click.option("--service", is_flag=True, help="Write a systemd unit and end.")
@JSON
def open_network(
    folder: Path | None, host: str | None, port: int, name: str, verifier: bool, service: bool, as_json: bool
) -> None:
    """Run a network that others can join, until Ctrl-C: one seat of its ledger, a relay,
    a faucet. Made in FOLDER if there is none; else it goes on where it was.

    Two ports must be reachable from outside. Prints the invitation when all is ready.
    """
    if verifier:
        require("torch")
    root = folder or default_folder()
    if not operator_folder.is_made(root):
        at = host or LOOPBACK
        operator_folder.make(root, NetworkPlaces(name, at, listen_at(at), port))
    elif host is not None and host != operator_folder.read(root).seat.host:
        raise click.UsageError(
            f"the network in {root} is at {operator_folder.read(root).seat.host}: to move it, edit "
            f"{operator_folder.SEAT} and {operator_folder.RELAY} in it"
        )
    if service:
        words = ["network", "open", str(root.absolute()), *(["--verifier"] if verifier else [])]
        found = operator_folder.read(root)
        unit = f"farflung-network-{found.name}"
        lines = write_unit(unit, f"the network {found.name} of farflung", words)
        say(as_json, {"unit": unit, "folder": str(root), "invitation": write(found.invitation())}, lines)
        return
    asyncio.run(_serve(root, verifier, as_json))


async def _serve(root: Path, verifier: bool, as_json: bool) -> None:
    """Until a signal comes. Raises what a process failed with."""
    found, ended, policy = operator_folder.read(root), asyncio.Event(), _OpenNetwork()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    supervisor = ProcessSupervisor(policy, policy)
    starting, helper = asyncio.create_task(_start(supervisor, root)), None
    try:
        await asyncio.wait([starting, asyncio.create_task(ended.wait())], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _introduce(found, as_json)
            helper = await _verifier(found) if verifier else None
            await supervisor.guard(ended.wait())
    finally:
        await _end(helper)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await supervisor.stop([LEDGER])


async def _verifier(found: OperatorFolder) -> Process:
    """A verifier of the operator's own account, which joins by the invitation as any other does."""
    words = ("lend", write(found.invitation()), "--audit", "--name", "operator")
    with (found.root / "verifier.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "farflung.app.cli.main", *words, stdin=DEVNULL, stdout=log, stderr=log
        )


async def _end(process: Process | None) -> None:
    """Asks a process to end, and waits for it."""
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _start(supervisor: ProcessSupervisor, root: Path) -> None:
    """The seat first: the relay follows its ledger."""
    for role, config in operator_folder.configs(root).items():
        name = LEDGER if role == "validator" else RELAY
        await supervisor.launch(SupervisedProcess(name, role, config, root / f"{name}.log"))
        await supervisor.ready(name)


def _introduce(found: OperatorFolder, as_json: bool) -> None:
    text = write(found.invitation())
    facts = {
        "name": found.name,
        "chain": found.genesis.chain.hex(),
        "folder": str(found.root),
        "seat": {"key": found.seat.key.hex(), "host": found.seat.host, "port": found.seat.port},
        "relays": [{"key": each.peer.hex(), "host": each.host, "port": each.port} for each in found.relays],
        "invitation": text,
    }
    lines = [f"Network  {found.name}, chain {found.genesis.chain.hex()[:12]}, in {found.root}"]
    lines += [f"Seat     {short(found.seat.key)} at {found.seat.host}:{found.seat.port}"]
    lines += [f"Relay    {short(bytes(each.peer))} at {each.host}:{each.port}" for each in found.relays]
    lines += [
        f"Keys     {found.root / operator_folder.TREASURY} owns the credits: keep a copy of it elsewhere",
        f"Note     {WORTH}",
        "Invite   this line leads others here:",
        text,
        "Next     farflung lend INVITE, or farflung run job.toml --on INVITE",
        "Ctrl-C ends it; the same command goes on.",
    ]
    say(as_json, facts, lines)


@click.command(epilog="Example: farflung network invite --uses 20 --days 7")
@FOLDER
@click.option("--uses", type=click.IntRange(1, 65535), help="Accounts that get credits whatever their address.")
@click.option("--days", type=click.IntRange(1, 3650), help="How long it counts. Default: for ever.")
@JSON
def invite(folder: Path | None, uses: int | None, days: int | None, as_json: bool) -> None:
    """Print an invitation to the network in FOLDER.

    With --uses it brings a token: the faucet then serves so many accounts although
    their address block has had what it gets in a day.
    """
    found = operator_folder.read(folder or default_folder())
    expires = int(time.time()) + days * DAY_SECONDS if days else 0
    token = b"" if uses is None else new_token(found.faucet_key(), uses, *([expires] if expires else []))
    text = write(found.invitation(token, expires))
    facts = {"invitation": text, "uses": uses, "expires": expires or None}
    served = [f"Its token gives first credits to {uses} accounts whatever their address."] if uses else []
    say(as_json, facts, [text, *served, WORTH])
