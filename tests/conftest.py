"""What all tests start from."""

import fcntl
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from farflung.app.cli.main import main
from farflung.compress import kernels

pytest_plugins = ["selection", "kernel_cache"]

pytest.register_assert_rewrite(
    "app_trees",
    "attack_world",
    "attack_lease",
    "attack_run",
    "attack_snapshot",
    "attack_wire",
    "net_relays",
    "net_groups",
    "net_tolls",
    "sim_net",
    "sim_net_story",
)

from app_trees import Ended, Farflung  # noqa: E402 - its assertions are rewritten by the line above

# A shell that starts something in the background lets it ignore Ctrl-C, and so all that it starts: the tests of what
# Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process of a suite would compile the sources that it imports, and pytest's every one of the test modules (12 s of
# a processor), where the environment forbids to keep what was compiled.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Threads of torch that wait for each other sleep: by default they spin, and of several processes on few cores one spins
# on the core that another needs (a third of all that the tests of training took). It is read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What is collected stays to the end: who looks for garbage in 12,000 tests and torch finds none.
gc.disable()

# No test is timed: on a busy machine an example takes as long as it takes.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def shared_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of several tests run leaves nothing in the state folder of whoever runs the tests, either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state" / "shared"))
        yield


@pytest.fixture(autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds the runs of another one, or of whoever runs the tests (peers.rundir.known_runs)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state" / os.urandom(8).hex()))


def _patience(item: pytest.Item) -> float:
    """How long a test may last, in seconds; 0 where it does not say."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark and mark.args else 0.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may last longest begins first, so that nothing long is left alone at the end; else as in the files."""
    items.sort(key=lambda item: -_patience(item))


def pytest_collection_finish() -> None:
    """From here on garbage is looked for as ever, but not in what was there before."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """What a test leaves slows no other: an engine's choice of loops (kernels.settle), what a file's tests keep."""
    try:
        return (yield)
    finally:
        kernels.CODECS.settled = None
        if nextitem is not None and nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.fixture
def farflung(tmp_path: Path) -> Iterator[Farflung]:
    """The command, with a folder of runs of its own; nothing that it started is left."""
    command = Farflung(tmp_path / "runs")
    yield command
    command.close()


@pytest.fixture
def command(
    farflung: Farflung, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """The command in this process, which is enough where it starts no other one, or refuses before it does."""

    def ask(*words: str) -> Ended:
        code = 0
        try:
            main(list(words))
        except SystemExit as left:
            code = int(left.code or 0)
        shown = capfd.readouterr()
        return Ended(code, shown.out.splitlines(), shown.err)

    monkeypatch.setenv("FARFLUNG_RUNS", str(farflung.runs))
    return ask


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Farflung, Ended]:
    """One finished tiny run, shared by all tests that only look at it, in whichever process of the suite they are.

    Its folder is for the tests of the group "tree", which are in one of them; what it said is for all.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    command, told = Farflung(base / "tiny" / "runs"), base / "tiny" / "told.json"
    with open(base / "tiny.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            points = {"FARFLUNG_FAILPOINT_LOG": str(told.with_name("failpoints"))}
            ended = command("run", "--preset", "tiny", "--json", "--baseline", **points)
            assert ended.code == 0, ended.errors
            told.write_text(json.dumps([ended.lines, ended.errors]))
        lines, errors = json.loads(told.read_text())
    return command, Ended(0, lines, errors)
