"""A sync method of a package of one's own: registered, a job names it, and everything else asks its row.

It is signSGD with majority vote (Bernstein et al. 2018, arXiv 1802.04434) on the largest of each chunk, with error
feedback: a bit for each, and an outer step by the sign of a running vote, a vector that no other method shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from app_sync import flat, loss, net

from farflung.advice.method_choice import choose
from farflung.advice.method_costs import MethodSetting
from farflung.compress.codecs import Codec
from farflung.compress.sparse import TopKCodec
from farflung.core import limits
from farflung.core.canon.float_operations import apply_sign
from farflung.core.codec import decode, encode
from farflung.core.errors import SpecError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.core.units import Seconds
from farflung.job import proof_class
from farflung.job.job_loader import load
from farflung.job.methods.muloco import MULOCO
from farflung.job.methods.outer_steps import OuterSetting, OuterStep
from farflung.job.methods.registry import METHODS, method_of, register, unregister
from farflung.job.methods.sync_method import FixedSetting, LinkRole, SyncMethod
from farflung.job.spec import JobSpec, SyncSpec
from farflung.job.spec_checks import check
from farflung.plan.link_syntax import Link
from farflung.plan.run_plan import describe_sync
from farflung.plan.run_traffic import snapshot_bytes
from farflung.plan.state_vectors import codec_of, outer_vectors
from farflung.sync.synchronizer import Synchroniser
from farflung.train import inner_steps, public_state
from farflung.train.engine import WorkerEngine
from farflung.train.sync_arithmetic import Sync
from farflung.train.worker_messages import AcceptedPayload, LoadCommand, MergeCommand, TrainCommand

VOTES = "votes"


def vote(setting: OuterSetting, params: Float32, change: Float32, kept: Mapping[str, Float32]) -> Float32:
    kept[VOTES][:] = np.float32(0.5) * kept[VOTES] + np.sign(change)
    return apply_sign(params, kept[VOTES], setting.rate)


class MajorityVote(SyncMethod):
    def codec(self, sync: SyncSpec, density: int) -> Codec:
        return TopKCodec(1, density, sync.chunk, "raw", sync.error_decay)

    def has_residual(self, sync: SyncSpec) -> bool:
        return True

    def describe(self, sync: SyncSpec) -> str:
        return f"{sync.topk} signs of {sync.chunk}"

    def outer(self, sync: SyncSpec) -> OuterStep:
        return OuterStep(lambda sync: (VOTES,), vote)

    def clip_limit(self, limit: float, peers: int) -> float:
        return 0.0


SIGN_VOTE = MajorityVote(
    "sign_vote",
    source="Bernstein et al. 2018",
    sends="8 signs of 4096",
    optimizers=("gradient",),
    codecs=("topk",),
    outers=("sign",),
    is_stepwise=True,
    fixed=(FixedSetting("sync.value_bits", 1, "a vote is a bit"),),
    unproven="is tried here for the first time",
    role=LinkRole.LOCAL,
    own={"optimizer.lr": 1e-3, "optimizer.momentum": 0.0, "sync.value_bits": 1, "sync.topk": 8, "sync.chunk": 4096},
)
LAYOUT = TensorLayout.of({"w": (64, 40), "b": (64,)})
FLAGS = {"sync.method": "sign_vote", "optimizer.clip": "1.0"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(SIGN_VOTE)
    yield
    unregister("sign_vote")


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


def test_a_method_that_nobody_registered_is_refused_by_name() -> None:
    spec = job()
    data = encode(spec)
    unregister("sign_vote")
    unregister("sparse_loco")  # one of our own stays
    assert "sparse_loco" in METHODS
    with pytest.raises(SpecError, match=r"FF-JOB-002.*must be one of .*not sign_vote"):
        job()
    foreign = decode(data, JobSpec, limits.LOG_RECORD_BYTES)
    for refuses in (check, Sync.of, proof_class.hidden_start, describe_sync):
        with pytest.raises(SpecError, match=r"FF-JOB-044.*unknown sync method 'sign_vote'"):
            refuses(foreign)
    with pytest.raises(SpecError, match="FF-JOB-044"):
        method_of("x" * 100_000)


@pytest.mark.parametrize("name", ["muloco", "", "Sign", "a b", "9lives", "a" * 33])
def test_a_name_that_is_taken_or_is_none_is_not_registered(name: str) -> None:
    with pytest.raises(SpecError, match="FF-JOB-045"):
        register(SyncMethod(**{f: getattr(MULOCO, f) for f in MULOCO.__dataclass_fields__} | {"name": name}))
