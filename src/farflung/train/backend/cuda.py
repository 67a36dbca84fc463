"""Cards of NVIDIA (CUDA) and AMD (ROCm), which PyTorch calls by one name. Not run on a card yet."""

from __future__ import annotations

import torch

from farflung.train.backend.device_backend import DeviceCard


class CudaBackend:
    """Products are exact to float32 without TF32, and repeat with the workspace that host.worker_limits names."""

    name = "cuda"

    def cards(self) -> tuple[DeviceCard, ...]:
        """See `DeviceBackend.cards`."""
        return tuple(map(_card, range(torch.cuda.device_count()))) if torch.cuda.is_available() else ()

    def settle(self) -> None:
        """See `DeviceBackend.settle`."""
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False

    def seed(self, number: int) -> None:
        """See `DeviceBackend.seed`."""
        torch.cuda.manual_seed_all(number)


def _card(number: int) -> DeviceCard:
    found = torch.cuda.get_device_properties(number)
    with torch.cuda.device(number):
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return DeviceCard(found.name, found.total_memory, has_bf16)
