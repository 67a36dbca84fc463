"""What the requester tells of its own merge: whom it clipped, and that a round changed nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.job_loader import load
from farflung.peers.protocol import messages
from farflung.peers.requester.round_tasks import RoundTasks
from farflung.train.sync_arithmetic import Sync
from farflung.train.worker_messages import AcceptedPayload

LAYOUT = TensorLayout.of({"w": (8, 8)})


def merged(sizes: list[float], rounds: int = 1, **flags: str) -> tuple[Any, list[str]]:
    """The requester after rounds in which each peer changes weights of 1 by its size, and the codes that it told."""
    sync = Sync.of(load(None, flags={key.replace("__", "."): value for key, value in flags.items()}).spec)
    told: list[str] = []
    journal = SimpleNamespace(emit=lambda event: told.append(event.code))
    held: Any = SimpleNamespace(
        _sync=sync, _terms=SimpleNamespace(layout=LAYOUT), _job=SimpleNamespace(journal=journal), _is_still_told=False
    )
    held._tell_still = lambda round: RoundTasks._tell_still(held, round)
    held._public = sync.initial(np.ones(LAYOUT.size, np.float32))
    for _ in range(rounds):
        parts = []
        for index, size in enumerate(sizes):
            peer = bytes([index + 1]) * 32
            end = held._public.params + np.float32(size)
            payload = sync.encode(held._public, None, None, end, LAYOUT, peer).payload
            parts.append(AcceptedPayload(peer, 64, payload))
        held._public = RoundTasks._applied(held, parts)
    return held, told


def test_no_round_is_ordered_before_all_but_the_last_three_are_recorded() -> None:
    happened: list[Any] = []

    def noting(what: str) -> Any:
        async def note(*facts: Any) -> None:
            happened.append((what, *facts))
            if what == "asked":
                raise NetworkError("FF-NET-010", "nobody answers")

        return note

    spec = SimpleNamespace(churn=SimpleNamespace(adaptive=False))
    held: Any = SimpleNamespace(
        catch_up=noting("caught up"),
        _recorded=noting("recorded"),
        _terms=SimpleNamespace(spec=spec, id=Hash(bytes(32))),
        _rounds=SimpleNamespace(state=SimpleNamespace(assigned={})),
        _calls=SimpleNamespace(ask=lambda _peer, method, _body: noting("asked")(method)),
    )
    with pytest.raises(NetworkError):
        asyncio.run(RoundTasks._train(held, 7, PeerId(bytes(32))))
    assert happened[1:] == [("recorded", 3), ("asked", messages.TRAIN)]
    assert limits.UNRECORDED_ROUNDS < limits.UNPAID_ROUNDS


def test_whose_contribution_was_clipped_is_kept_for_the_event() -> None:
    held, told = merged([0.5, 0.5, 2.0])
    assert held._clipped == {bytes([3]) * 32: pytest.approx(0.75, rel=1e-3)}
    assert told == []


def test_rounds_that_change_no_weight_are_told_once() -> None:
    assert merged([0.0, 0.0], 3)[1] == ["FF-APP-473"]
    assert merged([0.5, 0.5], 3)[1] == []
    assert merged([0.5, 0.5], 3, sync__delay="1")[1] == []  # what a first round sends is applied by the second
