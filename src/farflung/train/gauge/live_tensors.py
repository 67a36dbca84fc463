"""Tracks live tensors: every storage from the operation that makes it until its last reference is gone (P2).

A dispatch mode sees each operation below autograd, of real tensors and of fake ones (FakeTensorMode, which have shapes
and no numbers) alike. A storage counts once, whatever views of it there are; PyTorch keeps one Python object for it as
long as it lives, so that a weak reference says when it ends.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten: Final = torch.ops.aten
Spot = tuple[int, int]  # a storage, and where in it
Course = tuple[tuple[int, int], ...]  # after each operation: whose it was, and bytes that are alive
AFTER: Final = -1  # the place of what lies between repeated blocks and after them
# A loss over words stands after all blocks wherever it is written: it is in float32, whatever the rest is in.
LOSS: Final = frozenset(
    {
        aten._log_softmax.default,
        aten._log_softmax_backward_data.default,
        aten.nll_loss_forward.default,
        aten.nll_loss_backward.default,
    }
)


class _StorageRecord(NamedTuple):
    storage: weakref.ref[Any]
    number: int  # storages are numbered as they come: an address may come again
    size: int
    place: int


class LiveTensorTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. `now` and `peak` are in bytes; `at` is where new storages are booked."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.flop = 0  # of products, convolutions and attention
        self.count = 0  # storages so far
        self.at = 0
        self.handed = 0  # bytes that a block returned, at most
        self.history: list[tuple[int, int]] = []  # place and `now` of each operation
        self.used: dict[Spot, set[int]] | None = None  # if somebody asks: places where a tensor is read
        self._alive: dict[int, _StorageRecord] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operation and books what it made."""
        result = func(*args, **(kwargs or {}))
        place = AFTER if func in LOSS else self.at
        if self.used is not None:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.used.setdefault(spot_of(leaf), set()).add(self.at)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._book(leaf, place)
        self.peak = max(self.peak, self.now)
        self.history.append((place, self.now))
        self.flop += flop_of(func, args, kwargs or {}, result)
        return result

    def number_of(self, tensor: Tensor) -> int:
        """Which storage it is; one that was not seen is booked."""
        return self._book(tensor, self.at).number

    def place_of(self, tensor: Tensor) -> int:
        """Where it was made."""
        return self._book(tensor, self.at).place

    def _book(self, tensor: Tensor, place: int) -> _StorageRecord:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            self.count += 1
            gone = weakref.ref(storage, lambda _: self._forget(key))
            self._alive[key] = _StorageRecord(gone, self.count, storage.nbytes(), place)
            self.now += self._alive[key].size
        return self._alive[key]

    def _forget(self, key: int) -> None:
        self.now -= self._alive.pop(key).size

    def begin(self) -> None:
        """From now on peak, FLOP and history are those of what comes."""
        self.peak, self.flop, self.history = self.now, 0, []

    def since(self, count: int) -> Counter[int]:
        """Bytes by place of what is alive and came after so many storages."""
        found = Counter[int]()
        for booked in self._alive.values():
            if booked.number > count:
                found[booked.place] += booked.size
        return found


def spot_of(tensor: Tensor) -> Spot:
    """What tells a tensor and its views from the start from all others, as long as it lives."""
    return int(tensor.untyped_storage()._cdata), int(tensor.storage_offset())


class SavedTensorTracker:
    """What autograd holds for the backward pass, by its own hooks: bytes of storages that come inside."""

    def __init__(self, living: LiveTensorTracker) -> None:
        self.bytes = 0
        self._living, self._before = living, living.count
        self._seen: set[int] = set()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> SavedTensorTracker:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor:
        number = self._living.number_of(tensor)
        if number > self._before and number not in self._seen:
            self._seen.add(number)
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


def flop_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """FLOP of one operation, a multiply and an add being two; 0 for what is no product.

    PyTorch's own table of formulas lacks attention on a CPU: two products forward, five backward (Dao et al. 2022,
    section 3.1), causal or not.
    """
    packet = getattr(func, "_overloadpacket", None)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return _attention(2, *args[:2])
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return _attention(5, *args[1:3])
    return 0


def _attention(products: int, q_BHTK: Tensor, k_BHSK: Tensor) -> int:
    B, H, T, K = q_BHTK.shape
    return 2 * products * B * H * T * int(k_BHSK.shape[2]) * K
