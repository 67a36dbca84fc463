"""Peers in threads of one process: a group without a network, small models, and what a test breaks on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from farflung.sync.exchange_channel import CHANNEL_BITS
from farflung.sync.group import GroupExchange, rank_id, too_few

Tamper = Callable[[int, int, bytes], bytes | None]  # tag, rank, payload -> what arrives at all; None: nothing
SIDE = 24
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where the models of these tests lie
TAGS = 4


class Table:
    """Where the threads meet."""

    def __init__(self, size: int, tamper: Tamper | None = None) -> None:
        self.size, self.tamper = size, tamper
        self.barrier = threading.Barrier(size, timeout=300)
        self.sent: dict[tuple[int, int], bytes] = {}  # by TAGS x round, and rank
        self.held: dict[tuple[int, int], bytes] = {}  # by name and rank, with what stands before a payload

    def groups(self) -> list[ThreadGroup]:
        return [ThreadGroup(self, rank) for rank in range(self.size)]


class ThreadGroup:
    """A farflung.sync.group.SyncGroup between threads."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank = table, rank
        self.ids = tuple(map(rank_id, range(table.size)))
        self.meetings = 0

    def meeting(self) -> int:
        self.meetings += 1
        return self.meetings - 1

    def forget(self, channel: int) -> None:
        """Nothing is held."""

    def exchange(self, name: int, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        assert len(payload) <= bound
        table, came = self.table, payload
        if name >> CHANNEL_BITS:  # else a meeting
            size = 1 + payload[0]
            label, said = payload[1:size].decode(), payload[size:]
            tag = TAGS * int(label.split()[-1]) + ("check" in label) if label != "share()" else -1
            told = table.tamper(tag, self.rank, said) if table.tamper else said
            if told is not None:
                table.sent[tag, self.rank] = told
            came = None if told is None else payload[:size] + told
        if came is not None:
            table.held[name, self.rank] = came
        table.barrier.wait()
        found = {rank: table.held[name, rank] for rank in range(table.size) if (name, rank) in table.held}
        missing = {rank: "nothing came" for rank in range(table.size) if rank not in found}
        if len(found) < quorum:
            raise too_few(len(found), quorum, missing)
        own = len(payload)
        return GroupExchange(found, missing, own * (table.size - 1), sum(map(len, found.values())) - own)

    def dedicated(self) -> ThreadGroup:
        return self

    def close(self) -> None:
        """Nothing is held."""


def together(size: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs work(rank) in threads; returns the results by rank, or raises the first rank's error.

    Each computes by itself: so small a model is not worth the threads of torch, of which every rank would have some.
    """
    results: list[Any] = [None] * size
    errors: dict[int, BaseException] = {}

    def one(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    finally:
        torch.set_num_threads(before)
    if errors:
        raise errors[min(errors)]
    assert not any(thread.is_alive() for thread in threads)
    return results


def net(seed: int = 0, *, hidden: int = 40) -> nn.Module:
    """A small model whose weights depend on `seed` alone."""
    made = nn.Sequential(nn.Linear(SIDE, hidden), nn.Tanh(), nn.Linear(hidden, SIDE))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made.to(DEVICE)


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """The loss of one rank's batch number `step`."""
    like = next(model.parameters())
    x = torch.randn(8, SIDE, generator=torch.Generator().manual_seed(1000 * rank + step)).to(like.device, like.dtype)
    return ((model(x) - x.flip(1)).float() ** 2).mean()


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters, in one vector."""
    return torch.cat([p.detach().float().reshape(-1).cpu() for p in model.parameters()])


def train(sync: Any, model: nn.Module, rank: int, steps: range) -> list[Any]:
    """The loop of the README; returns the reports."""
    reports = []
    for step in steps:
        loss(model, rank, step).backward()
        reports.append(sync.step())
        sync.zero_grad()
    return [report for report in reports if report is not None]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def alone(rank: int, steps: int) -> torch.Tensor:
    """The weights of a peer that trained by itself."""
    model = net()
    optimizer = adamw(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
    return flat(model)
