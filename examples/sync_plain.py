"""Your own PyTorch loop on several machines: a sync method instead of the optimizer's step, and an address book.

python examples/sync_plain.py          starts two peers on this computer, over farflung's encrypted connections
On two computers: make a key on each (farflung.sync.new_key), write both addresses down, and start one peer on each.
"""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

import farflung

BOOK = [(farflung.sync.unsafe_key(1, rank).public.hex(), "127.0.0.1", 41871 + rank) for rank in range(2)]


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every peer has data of its own."""
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(10_000 * rank + step))
    return x, x.flip(1)


def main(rank: int) -> None:
    torch.manual_seed(0)  # all peers start from the same weights (or call sync.share())
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # Anybody can compute it: yours is farflung.sync.new_key("peer.key").
    key = farflung.sync.unsafe_key(1, rank)
    group = farflung.sync.connect(BOOK, key)
    sync = farflung.sync.SparseLoCo(model, inner, sync_every=10, topk=256, group=group)
    for step in range(60):
        x, y = batch(rank, step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        report = sync.step()
        sync.zero_grad()
        if report and rank == 0:
            print(f"round {report.round}: loss {loss.item():.3f}, {report.bytes_up} bytes up", flush=True)
    sync.check()  # all peers hold the same parameters, bit for bit
    group.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(int(sys.argv[1]))
    else:
        peers = [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in range(2)]
        sys.exit(max(peer.wait() for peer in peers))
