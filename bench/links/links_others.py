"""Other systems in bench/links.py's links: what each needs beside its workers, and a worker's step by it.

torchft (a lighthouse; per-step DDP, and DiLoCo) and hivemind (a DHT; one global batch a step, and local updates) train
in bench/links/links_worker.py, Flower's FedAvg in bench/links/links_flower.py: the same model and text, under their
own programs. torchft sends in the clear, and Flower with `--insecure`, as its own first examples do; hivemind's
libp2p encrypts.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from links_shaped import HUB, Links, address

HERE: Final = Path(__file__).resolve().parent
RATE: Final = 1e-3
BATCH: Final = 4  # windows of a worker's step, as in links_worker
STARTING: Final = 120.0  # seconds for a hub to say that it is ready
LIGHTHOUSE, DHT, SUPERLINK = 29510, 31337, 9092  # ports of hubs
MATCHING: Final = 1.5  # seconds in which hivemind's peers find each other
AWAY: Final = datetime.timedelta(seconds=60)


class Failed(Exception):  # noqa: N818 - not a defect of ours
    """A system that did not do it, with what it said last."""


class Hub(NamedTuple):
    """What runs beside the workers, and what their environment says of it."""

    process: subprocess.Popen[str]
    environment: Mapping[str, str]


def start(system: str, python: str, links: Links, environment: Mapping[str, str], folder: Path) -> Hub:
    """Starts a system's hub in a place of its own, whose link is not shaped, and waits until it can be asked."""
    said = folder / "hub.out"
    with said.open("w") as out:
        match system:
            case "torchft":
                return _lighthouse(python, links, environment, out, said)
            case "hivemind":
                return _dht(python, links, environment, out, said)
            case "flwr":
                return _superlink(python, links, environment, out, said)
    raise SystemExit(f"no system {system!r}")


def worker(system: str, python: str, rank: int) -> list[str] | None:
    """The command of a worker that is no links_worker.py."""
    if system != "flwr":
        return None
    node = str(Path(python).parent / "flower-supernode")
    return [node, "--insecure", "--superlink", f"{_hub()}:{SUPERLINK}", "--node-config", f"rank={rank}"]


def _hub() -> str:
    return address(HUB)


def _lighthouse(python: str, links: Links, environment: Mapping[str, str], out: IO[str], said: Path) -> Hub:
    program = str(Path(python).parent / "torchft_lighthouse")
    options = (
        "--min_replicas", str(links.count), "--quorum_tick_ms", "100", "--join_timeout_ms", "60000",
    )  # fmt: skip
    process = links.start(HUB, [program, "--bind", f"0.0.0.0:{LIGHTHOUSE}", *options], environment, out)
    _until(process, said, lambda: _listens(links, LIGHTHOUSE))
    return Hub(process, {"TORCHFT_LIGHTHOUSE": f"http://{_hub()}:{LIGHTHOUSE}"})


def _dht(python: str, links: Links, environment: Mapping[str, str], out: IO[str], said: Path) -> Hub:
    code = (
        "import hivemind, time\n"
        f"dht = hivemind.DHT(host_maddrs=['/ip4/{_hub()}/tcp/{DHT}'], start=True, use_ipfs=False)\n"
        "print(dht.get_visible_maddrs()[0], flush=True)\ntime.sleep(9999)"
    )
    process = links.start(HUB, [python, "-c", code], environment, out)
    address = re.compile(rf"/ip4/{re.escape(_hub())}/tcp/{DHT}/p2p/\w+")
    _until(process, said, lambda: bool(address.search(said.read_text())))
    found = address.search(said.read_text())
    assert found is not None
    return Hub(process, {"PEERS": found[0]})


def _superlink(python: str, links: Links, environment: Mapping[str, str], out: IO[str], said: Path) -> Hub:
    """The server, then the run; the case ends with it."""
    programs, app, home = Path(python).parent, said.parent / "app", said.parent / "home"
    app.mkdir()
    home.mkdir()
    shutil.copy(HERE / "links_flower.py", app)
    (app / "pyproject.toml").write_text(FLOWER)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "links"\n[superlink.links]\naddress = "{_hub()}:{SUPERLINK}"\ninsecure = true\n'
    )
    # It looks for its own programs.
    found = os.pathsep.join([str(programs), environment.get("PATH", os.defpath)])
    own = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": found}
    rounds = int(environment["STEPS"]) // int(environment["EVERY"])
    asked = f"rounds={rounds} steps={environment['EVERY']}"
    script = (
        f"cd {app}; {programs}/flower-superlink --insecure --disable-runtime-dependency-installation"
        f" --host {_hub()} --port {SUPERLINK} &\n"
        f"until ss -ltn | grep -q :{SUPERLINK}; do sleep 0.5; done; sleep 2\n"
        f"exec {programs}/flwr run . links --stream --run-config '{asked}'"
    )
    process = links.start(HUB, ["bash", "-c", script], {**environment, **own}, out)
    _until(process, said, lambda: _listens(links, SUPERLINK))
    return Hub(process, own)


FLOWER: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "links"
version = "1.0.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "links_flower:server"
clientapp = "links_flower:client"
[tool.flwr.app.config]
rounds = 3
steps = 20
"""


def _listens(links: Links, port: int) -> bool:
    """Whether something in the hub's place listens on a port."""
    with open(os.devnull, "w") as nothing:
        asked = links.start(HUB, ["sh", "-c", f"ss -ltn | grep -q :{port}"], os.environ, nothing)
    return asked.wait() == 0


def _until(process: subprocess.Popen[str], said: Path, is_ready: Callable[[], bool]) -> None:
    until = time.monotonic() + STARTING
    while not is_ready():
        if process.poll() is not None or time.monotonic() > until:
            raise Failed(f"the hub did not start\n{said.read_text()[-3000:]}")
        time.sleep(0.5)


# A worker's side: the interpreter has the system, and torch

Step = Callable[[Any, Any], tuple[float, Any]]


def make(module: Any, system: str, kind: str, rank: int, world: int, every: int) -> tuple[Step, Callable[[], None]]:
    """A training step of `torchft` or `hivemind`, and what ends it."""
    if system == "torchft":
        return _torchft(module, kind, rank, world, every)
    if system == "hivemind":
        return _hivemind(module, kind, world, every)
    raise SystemExit(f"no system {system!r}")


def _torchft(module: Any, kind: str, rank: int, world: int, every: int) -> tuple[Step, Callable[[], None]]:
    """`ddp`: every step; `diloco`: every `every` steps, fp32."""
    import torch
    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    adamw = torch.optim.AdamW(module.parameters(), lr=RATE)
    outer = torch.optim.SGD(module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    host = socket.gethostname()
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=AWAY), min_replica_size=world, load_state_dict=module.load_state_dict,
        state_dict=module.state_dict, use_async_quorum=kind == "ddp", timeout=AWAY, quorum_timeout=2 * AWAY,
        rank=0, world_size=1, store_addr=host, store_port=store.port, hostname=host, replica_id=f"w{rank}_",
        init_sync=False,
    )  # fmt: skip
    if kind == "ddp":
        forward, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, adamw)
    else:
        forward, optimizer = module, adamw
        DiLoCo(manager, [module], adamw, outer, sync_every=every, pin_memory=False).__enter__()

    def step(x: Any, y: Any) -> tuple[float, Any]:
        optimizer.zero_grad()
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss.item(), None

    return step, lambda: None


def _hivemind(module: Any, kind: str, world: int, every: int) -> tuple[Step, Callable[[], None]]:
    """`fp16`: a step is one of all peers, by their global batch; `local`: averaged every `every` steps or so."""
    import hivemind
    import torch
    from hivemind.compression import Float16Compression, NoCompression

    dht = hivemind.DHT(
        initial_peers=os.environ["PEERS"].split(","), host_maddrs=[f"/ip4/{os.environ['IP']}/tcp/0"],
        start=True, use_ipfs=False,
    )  # fmt: skip
    local = kind == "local"
    optimizer = hivemind.Optimizer(
        dht=dht, run_id=f"links-{kind}", batch_size_per_step=BATCH,
        target_batch_size=BATCH * world * (every if local else 1), params=module.parameters(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=RATE),
        use_local_updates=local, delay_state_averaging=local, matchmaking_time=MATCHING,
        averaging_timeout=20, allreduce_timeout=15, averager_opts={"request_timeout": 1.0},
        grad_compression=Float16Compression(), state_averaging_compression=Float16Compression(),
        average_state_every=1 if local else 5, load_state_compression=NoCompression(),
        tracker_opts={"min_refresh_period": 0.3, "default_refresh_period": 1.0, "max_refresh_period": 3.0},
    )  # fmt: skip

    def step(x: Any, y: Any) -> tuple[float, Any]:
        epoch = optimizer.local_epoch
        while True:  # peers that wait for each other's batches go on with the same one
            loss = module(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if local or optimizer.local_epoch > epoch:
                return loss.item(), None

    return step, lambda: None


def leave(system: str) -> None:
    """Ends a worker whose system keeps threads and processes that do not end by themselves."""
    if system == "hivemind":
        time.sleep(5.0)  # others may still be asking
    if system in ("hivemind", "torchft"):
        sys.stdout.flush()
        os._exit(0)
