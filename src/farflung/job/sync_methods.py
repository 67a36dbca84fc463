"""Lists the sync methods: the defaults of each one, and the optimizers and codecs it can be combined with.

| method      | Source                                               |
|-------------|------------------------------------------------------|
| dense       | every gradient, as one machine with a larger batch   |
| local_sgd   | Stich 2019 (arXiv 1805.09767)                        |
| diloco      | Douillard et al. 2023 (arXiv 2311.08105)             |
| muloco      | Therien et al. 2025 (arXiv 2505.23725)               |
| sparse_loco | Sarfi et al. 2025 (arXiv 2508.15706)                 |
| demo        | Peng et al. 2024 (arXiv 2411.19870)                  |
| dgc         | Lin et al. 2018 (arXiv 1712.01887)                   |
| powersgd    | Vogels et al. 2019 (arXiv 1905.13727)                |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

METHOD: Final = "sync.method"


class SyncMethod(NamedTuple):
    """What a method's parts may be, and its defaults by dotted key. `is_stepwise`: it agrees after each step, H = 1."""

    optimizers: tuple[str, ...]
    codecs: tuple[str, ...]
    outers: tuple[str, ...]
    is_stepwise: bool
    defaults: Mapping[str, Any]


def _method(optimizers: str, codecs: str, outers: str, *, is_stepwise: bool = False, **defaults: Any) -> SyncMethod:
    """Defaults are given as section__key."""
    dotted = {key.replace("__", "."): value for key, value in defaults.items()}
    first: dict[str, Any] = {
        "optimizer.name": optimizers.split()[0],
        "sync.codec": codecs.split()[0],
        "sync.outer": outers.split()[0],
        "sync.outer_lr": 1.0,
        "sync.outer_momentum": 0.0,
        "optimizer.lr": 3e-3,
        "optimizer.momentum": 0.9,
    }
    if is_stepwise:
        first |= {"sync.steps": 1, "audit.segments": 1}
    return SyncMethod(
        tuple(optimizers.split()),
        tuple(codecs.split()),
        tuple(outers.split()),
        is_stepwise,
        MappingProxyType({**first, **dotted}),
    )


METHODS: Final[Mapping[str, SyncMethod]] = MappingProxyType(
    {
        "dense": _method(
            "gradient",
            "dense",
            "adamw sgd",
            is_stepwise=True,
            optimizer__momentum=0.0,
            sync__value_bits=32,
            sync__error_decay=1.0,
        ),
        "local_sgd": _method("adamw sgd muon", "dense", "sgd", sync__value_bits=32),
        "diloco": _method(
            "adamw sgd muon", "dense", "sgd", sync__value_bits=32, sync__outer_lr=0.7, sync__outer_momentum=0.9
        ),
        "muloco": _method(
            "muon",
            "dense topk",
            "sgd",
            optimizer__lr=1e-2,
            optimizer__momentum=0.95,
            sync__value_bits=2,
            sync__outer_lr=0.8,
            sync__outer_momentum=0.6,
            sync__error_decay=0.95,
        ),
        "sparse_loco": _method(
            "muon adamw sgd",
            "topk",
            "sgd",
            optimizer__lr=1e-2,
            optimizer__momentum=0.95,
            sync__value_bits=2,
            sync__topk=64,
            sync__chunk=4096,
            sync__error_decay=0.95,
        ),
        "demo": _method(
            "gradient",
            "topk",
            "sign",
            is_stepwise=True,
            optimizer__lr=1e-3,
            optimizer__momentum=0.0,
            optimizer__clip=0.0,
            sync__value_bits=32,
            sync__topk=32,
            sync__chunk=4096,
            sync__transform="dct",
            sync__error_decay=0.999,
        ),
        "dgc": _method(
            "gradient",
            "topk",
            "sgd",
            is_stepwise=True,
            optimizer__lr=0.1,
            optimizer__momentum=0.9,
            optimizer__weight_decay=1e-4,
            sync__value_bits=32,
            sync__topk=4,
            sync__chunk=4096,
            sync__error_decay=1.0,
        ),
        "powersgd": _method(
            "gradient",
            "low_rank",
            "adamw sgd",
            is_stepwise=True,
            optimizer__momentum=0.0,
            sync__value_bits=32,
            sync__error_decay=1.0,
        ),
    }
)
