"""Lightning with a sync method: a strategy of one device that exchanges between peers. Needs `pip install lightning`.

python examples/sync_lightning.py      trains a small model alone; with a group, every peer runs this program
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

import farflung


class FarflungStrategy(SingleDeviceStrategy):
    """One device for each peer, and a round every `sync_every` optimizer steps.

    `settings` go to farflung.sync.SparseLoCo: group, topk, fragment_sync_delay and the others. Beside each checkpoint
    stands a file for each peer, with this peer's weights and all that its next step depends on; training that goes on
    from a checkpoint begins with it, inside a round too.
    """

    def __init__(self, device: str = "cpu", **settings: Any) -> None:
        super().__init__(device=device)
        self.settings = settings
        self.sync: farflung.sync.SparseLoCo | None = None
        self.reports: list[farflung.sync.RoundReport] = []
        self.resumed: Path | None = None

    def setup(self, trainer: lightning.Trainer) -> None:
        super().setup(trainer)
        if self.optimizers:
            (inner,) = self.optimizers
            self.sync = farflung.sync.SparseLoCo(self.lightning_module, inner, **self.settings)

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        report = self.sync.advance() if self.sync is not None else None
        if report is not None:
            self.reports.append(report)
        return result

    def file(self, checkpoint: str | Path) -> Path:
        assert self.sync is not None
        path = Path(checkpoint)
        return path.with_name(f"{path.name}.farflung-sync-{self.sync.group.rank}.pt")

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self.sync is not None:
            kept = {"model": self.lightning_module.state_dict(), "sync": self.sync.state_dict()}
            torch.save(kept, self.file(filepath))

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        self.resumed = Path(checkpoint_path)
        return super().load_checkpoint(checkpoint_path, *args, **kwargs)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Lightning calls it once the model and the optimizers are there: the last that a checkpoint brings back."""
        super().load_optimizer_state_dict(checkpoint)
        if self.sync is not None and self.resumed is not None:
            # Without this file the run would go on as another one: better an error than that.
            kept = torch.load(self.file(self.resumed))
            self.lightning_module.load_state_dict(kept["model"])
            self.sync.load_state_dict(kept["sync"])

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        if self.sync is not None:
            self.file(filepath).unlink(missing_ok=True)

    def teardown(self) -> None:
        if self.sync is not None:
            self.sync.finish()
            self.sync.close()
        super().teardown()


class Reverse(lightning.LightningModule):
    """Learns to turn a vector around."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        (x,) = batch
        return nn.functional.mse_loss(self.net(x), x.flip(1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    rows = torch.utils.data.TensorDataset(torch.randn(96, 16))
    strategy = FarflungStrategy(sync_every=4, topk=128)
    trainer = lightning.Trainer(
        strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Reverse(), torch.utils.data.DataLoader(rows, batch_size=8))
    print(f"{len(strategy.reports)} rounds, {sum(r.payload_bytes for r in strategy.reports)} bytes in payloads")


if __name__ == "__main__":
    main()
