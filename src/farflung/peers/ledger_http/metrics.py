"""Formats a validator's metrics as a page of Prometheus' text format (exposition format 0.0.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from farflung.core import limits

WINDOW: Final = 1024  # blocks that the quantiles of finality are taken over
QUANTILES: Final = (0.5, 0.99)


@dataclass(slots=True)
class LedgerMetrics:
    """Numbers that the validator's shell fills in. Heights count blocks, `finality` holds seconds."""

    height: int = 0
    epoch: int = 0
    view: int = 0
    mempool: int = 0
    transactions: int = 0
    equivocations: int = 0
    rejected: int = 0
    requests: int = 0
    refusals: int = 0
    snapshots: int = 0
    stranded: int = 0
    finality: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    finalized: int = 0  # how many blocks `finality` was told of, ever
    finality_sum: float = 0.0
    peer_lag: dict[str, int] = field(default_factory=dict)  # blocks that a validator (hex) is behind

    def took(self, seconds: float) -> None:
        """A block was final so long after it was proposed."""
        self.finality.append(seconds)
        self.finalized += 1
        self.finality_sum += seconds

    def page(self) -> str:
        """The page."""
        return "\n".join((*self._lines(), ""))

    def _lines(self) -> Iterator[str]:
        yield from _gauge("height", "Height of the newest final block.", self.height)
        yield from _gauge("epoch", "Epoch of the committee.", self.epoch)
        yield from _gauge("view", "View that the committee is in.", self.view)
        yield from _gauge("mempool", "Transactions that wait.", self.mempool)
        yield from _counter("transactions", "Transactions in final blocks.", self.transactions)
        yield from _counter("equivocations", "Conflicting votes that were seen.", self.equivocations)
        yield from _counter("rejected", "Transactions that may not enter a block.", self.rejected)
        yield from _counter("api_requests", "Requests of readers.", self.requests)
        yield from _counter("api_refusals", "Requests of readers that were refused.", self.refusals)
        yield from _counter("snapshots", "Snapshots taken where blocks were gone.", self.snapshots)
        about = "1 while the next block is gone and nobody gives a snapshot."
        yield from _gauge("stranded", about, self.stranded)
        yield from self._finality()
        name = "farflung_ledger_peer_lag_blocks"
        yield f"# HELP {name} Blocks that another validator is behind."
        yield f"# TYPE {name} gauge"
        for peer, lag in list(_named(self.peer_lag).items())[: limits.METRIC_PEERS]:
            yield f'{name}{{peer="{peer}"}} {lag}'

    def _finality(self) -> Iterator[str]:
        name = "farflung_ledger_finality_seconds"
        yield f"# HELP {name} From a block's proposal to its finality, over the last {WINDOW} blocks."
        yield f"# TYPE {name} summary"
        ordered = sorted(self.finality)
        for quantile in QUANTILES:
            value = ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else "NaN"
            yield f'{name}{{quantile="{quantile}"}} {value}'
        yield f"{name}_sum {self.finality_sum}"
        yield f"{name}_count {self.finalized}"


def _named(lags: Mapping[str, int]) -> dict[str, int]:
    """Lags under names that cannot leave their quotes: keys are hexadecimal, and shortened to what tells them apart."""
    return {peer[:16]: lag for peer, lag in sorted(lags.items()) if peer.isalnum() and peer.isascii()}


def _gauge(name: str, about: str, value: int) -> Iterator[str]:
    full = f"farflung_ledger_{name}"
    yield f"# HELP {full} {about}"
    yield f"# TYPE {full} gauge"
    yield f"{full} {value}"


def _counter(name: str, about: str, value: int) -> Iterator[str]:
    full = f"farflung_ledger_{name}_total"
    yield f"# HELP {full} {about}"
    yield f"# TYPE {full} counter"
    yield f"{full} {value}"
