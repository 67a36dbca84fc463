"""Flower's side of bench/links.py: FedAvg, local steps of AdamW a round, weights in fp32 both ways.

Every round starts the client as a process of its own, which is how Flower runs it: AdamW's state does not outlast it.
"""

from __future__ import annotations

import os
from typing import Any

import links_worker
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """A round of one worker; a line a step."""
    torch.set_num_threads(1)
    rank, settings = int(context.node_config["rank"]), message.content["config"]
    data, module = links_worker.text(), links_worker.model()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.AdamW(module.parameters(), lr=links_worker.RATE)
    steps, round = int(settings["steps"]), int(settings["server-round"])
    generator = torch.Generator().manual_seed(links_worker.SEED + rank + 1000 * round)
    with links_worker.Log(rank, "a") as log:
        if round == 1:
            log.put(event="ready", parameters=sum(p.numel() for p in module.parameters()))
        for number in range(steps):
            loss = module(*links_worker.batch(data.train, links_worker.BATCH, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.put(event="step", step=(round - 1) * steps + number, loss=loss.item())
    told = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=told, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; the loss of what they led to is added to the first worker's lines."""
    settings: Any = context.run_config
    module, workers = links_worker.model(), int(os.environ["WORLD"])
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=workers, min_available_nodes=workers)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(module.state_dict()),
        num_rounds=int(settings["rounds"]),
        train_config=ConfigRecord({"steps": int(settings["steps"])}),
        timeout=300,
    )
    module.load_state_dict(result.arrays.to_torch_state_dict())
    with links_worker.Log(0, "a") as log:
        log.put(event="end", held=links_worker.heldout(module, links_worker.text()))
