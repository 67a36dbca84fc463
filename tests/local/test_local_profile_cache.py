"""A job that was profiled on this machine before is not profiled again; another job, state or processor is."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import Hash
from farflung.core.tensor_layout import TensorLayout
from farflung.job.job_loader import load
from farflung.local.network import prepare
from farflung.peers.program import cache
from farflung.peers.program.cache import ProfileRequest
from farflung.train.worker_messages import ProfileCommand, ProfileResult

LAYOUT = TensorLayout.of({"a": (2,), "b": (3,)})
DISTANCES = (1e-6, 2e-6)
PROFILE = ProfileResult((("params", DISTANCES), ("mean", DISTANCES), ("square", DISTANCES)), (), ("base",), 0.5)
ASKED = ProfileRequest(load(None, preset="tiny").spec, Hash(bytes(32)), Hash(b"d" * 32), Hash(b"i" * 32))


class Worker:
    """Answers a profile, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    async def request(self, message: object) -> ProfileResult:
        assert message == ProfileCommand(b"state")
        self.asked += 1
        return PROFILE

    async def abandon(self) -> None:
        raise AssertionError("nothing is trained")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "farflung" / "profiles"


def profiled(worker: Worker, *jobs: ProfileRequest) -> list[object]:
    return [asyncio.run(prepare._profile(worker, b"state", LAYOUT, job)) for job in jobs]


def test_the_same_job_has_the_tolerance_that_was_kept(folder: Path) -> None:
    worker = Worker()
    first, second = profiled(worker, ASKED, ASKED)
    assert (first == second, worker.asked) == (True, 1)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "other",
    [
        ASKED._replace(spec=replace(ASKED.spec, seed=9)),
        ASKED._replace(spec=replace(ASKED.spec, rounds=ASKED.spec.rounds + 1)),
        ASKED._replace(module=Hash(b"m" * 32)),
        ASKED._replace(dataset=Hash(b"e" * 32)),
        ASKED._replace(initial=Hash(b"j" * 32)),
    ],
)
def test_another_job_is_profiled(folder: Path, other: ProfileRequest) -> None:
    worker = Worker()
    profiled(worker, ASKED, other)
    assert worker.asked == 2


def test_another_processor_and_what_is_no_profile_find_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, cpu = Worker(), tmp_path / "cpuinfo"
    monkeypatch.setattr(cache, "CPU", cpu)
    for flags in ("avx2", "avx2 avx512f", "avx2"):
        cpu.write_text(f"vendor_id: A\nmodel name: B\ncpu MHz: {len(flags)}\nflags: {flags}\n\nvendor_id: A\n")
        profiled(worker, ASKED)
    cpu.unlink()
    profiled(worker, ASKED, ASKED)
    assert worker.asked == 3
    cache.keep(ASKED, b"no profile")
    profiled(worker, ASKED)
    assert worker.asked == 4


def test_a_profile_that_audits_cannot_use_is_refused_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PolicyError("FF-VERI-115", "no margin")

    monkeypatch.setattr(prepare, "check_margins", refused)
    for _ in range(2):
        with pytest.raises(PolicyError, match="no margin"):
            profiled(Worker(), ASKED)
