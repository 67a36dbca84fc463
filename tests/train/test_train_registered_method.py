"""A sync method of another package: it is installed, a job names it, and everything else asks its row."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from app_sync import flat, loss, net
from attack_world import TERMS
from train_sign_vote import VOTES

from farflung.advice.method_choice import choose
from farflung.advice.method_costs import MethodSetting
from farflung.compress.sparse import TopKCodec
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import SpecError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.release import JOB_FORMAT
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds
from farflung.host.io.code_digest import image_digest
from farflung.job import proof_class
from farflung.job.job_loader import load
from farflung.job.methods import registry
from farflung.job.methods.muloco import MULOCO
from farflung.job.methods.registry import BUILT_IN, GROUP, METHODS, installed, method_of, register, unregister
from farflung.job.methods.sync_method import SyncMethod
from farflung.job.spec import JobSpec
from farflung.job.spec_checks import check
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node.policy import LeasePolicy
from farflung.peers.protocol import messages
from farflung.plan.link_syntax import Link
from farflung.plan.run_plan import describe_sync
from farflung.plan.run_traffic import snapshot_bytes
from farflung.plan.state_vectors import codec_of, outer_vectors
from farflung.sync.synchronizer import Synchroniser
from farflung.train import inner_steps, public_state
from farflung.train.engine import WorkerEngine
from farflung.train.sync_arithmetic import Sync
from farflung.train.worker_messages import AcceptedPayload, LoadCommand, MergeCommand, TrainCommand

LAYOUT = TensorLayout.of({"w": (64, 40), "b": (64,)})
FLAGS = {"sync.method": "sign_vote", "optimizer.clip": "1.0"}


def install(place: Path, points: str, name: str = "votes", version: str = "1.0") -> None:
    """What an installer leaves of a package whose modules are there already."""
    about = place / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")


def forget() -> None:
    """As in a new process."""
    for name in [name for name in METHODS if name not in {one.name for one in BUILT_IN}]:
        unregister(name)
    registry._installed = None


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the package lies; it is found without anybody's call."""
    found = tmp_path_factory.mktemp("site")
    install(found, "sign_vote = train_sign_vote:SIGN_VOTE")
    monkeypatch.syspath_prepend(found)
    forget()
    yield found
    monkeypatch.undo()
    forget()


def job(**flags: str) -> JobSpec:
    return load(None, preset="tiny", flags=FLAGS | flags).spec


def test_a_job_names_it_takes_its_defaults_and_is_held_to_its_parts() -> None:
    spec = job()
    assert (spec.sync.steps, spec.sync.value_bits, spec.sync.outer, spec.optimizer.lr) == (1, 1, "sign", 1e-3)
    for flags in ({"sync.value_bits": "2"}, {"sync.codec": "dense"}, {"sync.steps": "2"}):
        with pytest.raises(SpecError, match=f"FF-JOB-004.*{next(iter(flags))}"):
            job(**flags)
    assert proof_class.known(spec) == "sync.method = sign_vote is tried here for the first time"
    assert decode(encode(spec), JobSpec, limits.LOG_RECORD_BYTES) == spec


def test_a_plan_counts_it_describes_it_and_may_choose_it() -> None:
    spec = job()
    assert describe_sync(spec) == "sign_vote H=1 8 signs of 4096"
    assert outer_vectors(spec.sync) == 1
    assert snapshot_bytes(spec, LAYOUT) == 2 * 4 * LAYOUT.size
    assert codec_of(spec.sync).expect(LAYOUT) == TopKCodec(1, 8, 4096, "raw", 0.95).expect(LAYOUT)
    link = Link(3e8, 3e8, Seconds(1e-3))  # of the methods for a local network only the last one has payloads that fit
    choice = choose(MethodSetting(TensorLayout.of({"w": (4096, 4096)}), link, 4, Seconds(0.4)))
    assert [row.method for row in choice.methods] == list(METHODS)
    assert choice.chosen.method == "sign_vote"
    assert choice.reasons[0].startswith("sign_vote agrees after every step")


def part(spec: JobSpec, member: int, payload: bytes) -> AcceptedPayload:
    return AcceptedPayload(PeerId(bytes([member + 1]) * 32), spec.round_tokens, payload)


def a_round(spec: JobSpec, engines: list[WorkerEngine], number: int) -> tuple[Any, list[bytes]]:
    trained: list[Any] = [engine.handle(TrainCommand(number)) for engine in engines]
    parts = tuple(part(spec, member, one.payload) for member, one in enumerate(trained))
    merged: list[Any] = [engine.handle(MergeCommand(number, parts)) for engine in engines]
    assert len({one.root for one in merged}) == 1
    return merged[0].root, [one.inner for one in trained]


def test_a_job_trains_by_it_and_goes_on_from_disk_after_every_round(
    engine: Callable[..., WorkerEngine], tiny: JobSpec
) -> None:
    of = job()
    spec = msgspec.structs.replace(tiny, sync=of.sync, optimizer=of.optimizer)
    whole = [engine(spec, member) for member in range(2)]
    assert inner_steps.clip_limit(spec) == 0.0
    roots, states, inners = [], [], []
    for number in range(4):
        root, inner = a_round(spec, whole, number)
        state: Any = whole[0]._public
        assert set(state.vectors) == {VOTES}
        assert state.vectors[VOTES].any()
        roots.append(root)
        inners.append(inner)
        states.append(public_state.pack(state, whole[0]._job.model.layout))  # type: ignore[union-attr]
    for stop in range(1, 4):
        again = [engine(spec, member) for member in range(2)]
        for one, held in zip(again, inners[stop - 1], strict=True):
            one.handle(LoadCommand(stop, states[stop - 1], held))
        assert [a_round(spec, again, number)[0] for number in range(stop, 4)] == roots[stop:]


def test_what_it_sends_is_read_merged_and_applied_by_everybody_alike() -> None:
    sync, draw = Sync.of(job()), np.random.default_rng(3)
    state = sync.initial(np.zeros(LAYOUT.size, np.float32))
    ends = [state.params + draw.standard_normal(LAYOUT.size, np.float32) for _ in range(3)]
    peers = [PeerId(bytes([n]) * 32) for n in (1, 2, 3)]
    sent = [sync.encode(state, None, None, end, LAYOUT, peer) for end, peer in zip(ends, peers, strict=True)]
    parts = [AcceptedPayload(peer, 8, one.payload) for peer, one in zip(peers, sent, strict=True)]
    after = sync.apply(state, LAYOUT, parts)
    assert after.root(LAYOUT) == sync.apply(state, LAYOUT, parts[::-1]).root(LAYOUT)
    assert all(len(one.payload) <= sync.bound(LAYOUT) for one in sent)
    assert set(np.unique(after.vectors[VOTES])) == {-1.0, 0.0, 1.0}
    assert np.array_equal(np.sign(after.params), after.vectors[VOTES])
    assert np.unique(np.abs(after.params)).size == 2  # a step is plus or minus the rate, or none


def test_the_library_takes_it_and_goes_on_from_a_saved_state() -> None:
    def make() -> tuple[torch.nn.Module, Synchroniser]:
        model = net()
        return model, Synchroniser(model, job(), None, min_quorum=None, clip_to_median=False, group=None)

    def walk(model: torch.nn.Module, sync: Synchroniser, steps: range) -> None:
        for step in steps:
            sync.zero_grad()
            loss(model, 0, step).backward()
            sync.step()

    model, sync = make()
    walk(model, sync, range(3))
    other, again = make()
    other.load_state_dict(model.state_dict())
    again.load_state_dict(sync.state_dict())
    assert VOTES in again.state.vectors
    walk(model, sync, range(3, 6))
    walk(other, again, range(3, 6))
    assert torch.equal(flat(model), flat(other))


def test_a_process_of_a_run_finds_it_without_a_call(place: Path) -> None:
    """As each role and each worker is started; the test's own processes are told where the package lies."""
    path = os.pathsep.join([str(place), str(Path(__file__).parent)])
    code = "from farflung.job.methods.registry import method_of; print(method_of('sign_vote').sends)"
    done = subprocess.run(
        [sys.executable, "-s", "-P", "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "8 signs of 4096\n"


def test_a_computer_without_its_package_refuses_the_job_by_name(place: Path) -> None:
    spec = job()
    data, with_it = encode(spec), image_digest()
    shutil.rmtree(place / "votes-1.0.dist-info")
    forget()
    unregister("sparse_loco")  # one of our own stays
    assert "sparse_loco" in METHODS
    with pytest.raises(SpecError, match=r"FF-JOB-002.*must be one of .*not sign_vote"):
        job()
    foreign = decode(data, JobSpec, limits.LOG_RECORD_BYTES)
    terms = msgspec.structs.replace(TERMS, spec=foreign)
    offer = messages.LeaseOfferRequest(JOB_FORMAT, ZERO_HASH, terms, 100, 1 << 29, 1, terms.stake, 1, 10**9)
    policy = LeasePolicy(ZERO_HASH, LeaseRole.TRAIN, 1, terms.stake, 2**40, lambda: ZERO_HASH)
    for refuses in (check, Sync.of, proof_class.ungraphed, describe_sync):
        with pytest.raises(SpecError, match=r"FF-JOB-044.*unknown sync method 'sign_vote'"):
            refuses(foreign)
    with pytest.raises(SpecError, match=r"FF-JOB-044.*unknown sync method 'sign_vote'"):
        policy.judge(terms.requester, offer)
    with pytest.raises(SpecError, match="FF-JOB-044"):
        method_of("x" * 100_000)
    images = {with_it, image_digest()}
    install(place, "sign_vote = train_sign_vote:SIGN_VOTE", version="1.1")
    forget()
    assert len(images | {image_digest()}) == 3  # network.image = "mine" compares the package's version, too


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ("sign_vote = nowhere_at_all:METHOD", "votes 2.0 registers it, and ModuleNotFoundError"),
        ("sign_vote = train_sign_vote:NOBODY", "AttributeError"),
        ("sign_vote = train_sign_vote:VOTES", "TypeError: train_sign_vote:VOTES is no SyncMethod of the name"),
        ("another = train_sign_vote:SIGN_VOTE", "is no SyncMethod of the name another"),
        ("muloco = farflung.job.methods.muloco:MULOCO", ""),  # ours stays
    ],
)
def test_a_package_that_does_not_load_stops_its_own_method_alone(place: Path, points: str, why: str) -> None:
    shutil.rmtree(place / "votes-1.0.dist-info")
    install(place, points, version="2.0")
    forget()
    assert set(METHODS) == {one.name for one in BUILT_IN}
    assert method_of("muloco") is MULOCO
    name = points.partition(" ")[0]
    if why:
        for refuses in (lambda: method_of(name), lambda: load(None, flags={"sync.method": name})):
            with pytest.raises(SpecError, match=f"FF-JOB-046.*{re.escape(name)}.*{re.escape(why)}"):
                refuses()


@pytest.mark.parametrize(
    ("reads", "refused"),
    [
        ("BUILT = method_of('muloco')\nKNOWN = tuple(METHODS)", ""),
        ("OTHER = METHODS['sign_vote']", ""),  # its name comes before this one's
        ("OTHER = METHODS['zz_own']", "ahead 1.0 registers it, and KeyError: 'zz_own'"),
        ("OTHER = method_of('zz_own')", "FF-JOB-044"),
    ],
)
def test_a_package_that_reads_the_methods_while_it_is_imported_sees_those_that_are_there(
    place: Path, reads: str, refused: str
) -> None:
    (place / "zz_votes.py").write_text(
        "import dataclasses\n"
        "from farflung.job.methods.registry import METHODS, method_of\n"
        f"{reads}\n"
        "METHOD = dataclasses.replace(METHODS['muloco'], name='zz_own')\n"
    )
    sys.modules.pop("zz_votes", None)
    install(place, "zz_own = zz_votes:METHOD", name="ahead")
    forget()
    assert method_of("sign_vote").name == "sign_vote"  # no other package fails of it
    if refused:
        with pytest.raises(SpecError, match=f"FF-JOB-046.*zz_own.*{re.escape(refused)}"):
            method_of("zz_own")
    else:
        assert method_of("zz_own").name == "zz_own"
        assert installed().packages == {"sign_vote": "votes 1.0", "zz_own": "ahead 1.0"}
        assert installed().faults == {}


def test_two_packages_that_have_one_name_are_both_refused(place: Path) -> None:
    install(place, "sign_vote = train_sign_vote:SIGN_VOTE", name="others")
    forget()
    with pytest.raises(SpecError, match=r"FF-JOB-046.*sign_vote.*more than one package"):
        method_of("sign_vote")


@pytest.mark.parametrize("name", ["muloco", "", "Sign", "a b", "9lives", "a" * 33])
def test_a_name_that_is_taken_or_is_none_is_not_registered(name: str) -> None:
    with pytest.raises(SpecError, match="FF-JOB-045"):
        register(SyncMethod(**{f: getattr(MULOCO, f) for f in MULOCO.__dataclass_fields__} | {"name": name}))
