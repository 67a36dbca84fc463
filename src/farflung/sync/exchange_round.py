"""Runs one exchange, in the background if asked: sends the payload, collects all others, and aggregates them.

The rules and the arithmetic are those of the job engine (train.sync_arithmetic): decode, merge in fixed point,
outer step. Here is only what a library adds: a contribution that cannot be decoded is left out, by everybody
alike, with its reason; and a rank that holds other parameters than the others is named, because every payload says
from which public state it starts. Before the payload stand the tokens of the round, eight bytes, little-endian: the
weight of the contribution; 0 where the loop tells none, and then all weigh the same; 2^64 - 1 where it tells that there
were none: the payload then says only where the peer stands.
"""

from __future__ import annotations

import contextlib
import operator
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from farflung import __version__
from farflung.compress.merge import Rule, WeightedUpdate
from farflung.compress.payload import ContributionKey, describe
from farflung.compress.tensor_range import RangedMean, ranged_mean
from farflung.core import limits
from farflung.core.errors import ProtocolError, UsageError, VerificationError
from farflung.core.ids import Hash
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import JobSpec
from farflung.sync.exchange_channel import ExchangeChannel
from farflung.sync.group import GroupExchange, too_few
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import GRADIENT, Sync

UNTOLD: Final = 0  # instead of tokens, and
NOTHING: Final = (1 << 64) - 1  # of a round without any
TOKENS: Final = 1 << 48  # that a peer may count in a round

_TOKENS: Final = struct.Struct("<Q")
_WORDS: Final = {"steps": "sync_every", "delay": "fragment_sync_delay"}  # a job's words, and the library's
_EMPTY: Final = "it had no tokens in this round"


class RoundAggregate(NamedTuple):
    """What an exchange gave: the aggregate of the round's fragment, who is in it, and what it cost."""

    change: Float32
    accepted: tuple[int, ...]
    left_out: Mapping[int, str]
    payload_bytes: int
    bytes_up: int
    bytes_down: int
    seconds: float
    clipped: Mapping[int, float] = MappingProxyType({})


class SyncTerms(NamedTuple):
    """What all peers have agreed on beside the method: contributions that are needed, and whether norms are clipped."""

    quorum: int
    is_clipped: bool


def settings(spec: JobSpec, layout: TensorLayout, terms: SyncTerms) -> dict[str, Any]:
    """What all peers of a method must have alike, by the names of the methods' arguments."""
    names = [name for name in spec.sync.__struct_fields__ if name != "merge"]
    found: dict[str, Any] = {_WORDS.get(name, name): getattr(spec.sync, name) for name in names}
    if spec.optimizer.name == GRADIENT:
        found |= {name: getattr(spec.optimizer, name) for name in spec.optimizer.__struct_fields__ if name != "name"}
    found |= {"min_quorum": terms.quorum, "clip_to_median": terms.is_clipped}
    found["model"] = f"{len(layout.tensors)} tensors of {layout.size} elements ({layout.id[:4].hex()})"
    return found | {"farflung": __version__}


def gather(
    sync: Sync,
    state: PublicState,
    layout: TensorLayout,
    group: ExchangeChannel,
    payload: bytes,
    terms: SyncTerms,
    tokens: int = UNTOLD,
) -> RoundAggregate:
    """Exchanges the round's payload, of so many tokens, and merges what came.

    Raises NetworkError FF-SYNC-010, FF-SYNC-011; VerificationError FF-SYNC-006 (parameters differ); ProtocolError
    FF-SYNC-019 (a peer is at another call).
    """
    started = time.perf_counter()
    part = sync.fragment(state.round, layout)
    bound = _TOKENS.size + sync.bound(layout)
    exchanged = group.exchange(f"round {state.round}", _TOKENS.pack(tokens) + payload, bound, terms.quorum)
    payloads = {rank: data[_TOKENS.size :] for rank, data in exchanged.payloads.items()}
    check_roots(claimed_roots(payloads), state.root(layout))
    parts, broken = _decoded(sync, layout, group, exchanged, sync.about(state, layout, group.ids[0]))
    empty = {rank: _EMPTY for rank, update in parts.items() if update.weight == NOTHING}
    parts = {rank: update for rank, update in parts.items() if rank not in empty}
    left_out = {**exchanged.missing, **broken, **empty}
    if len(parts) + len(empty) < terms.quorum:
        raise too_few(len(parts) + len(empty), terms.quorum, left_out)
    rule: Rule = "clip" if terms.is_clipped else "mean"
    merged = RangedMean(np.zeros(part.layout.size, np.float32), {})
    if parts:
        merged = ranged_mean(part.layout, weighed(parts.values()), rule, is_fine=True)
    return RoundAggregate(
        merged.values,
        tuple(parts),
        left_out,
        len(payload),
        exchanged.bytes_up,
        exchanged.bytes_down,
        time.perf_counter() - started,
        {rank: merged.clipped[update.peer] for rank, update in parts.items() if update.peer in merged.clipped},
    )


def weighed(parts: Iterable[WeightedUpdate]) -> list[WeightedUpdate]:
    """The parts with weights that a merge can hold: tokens, by a power of two where one counts more than that."""
    held = list(parts)
    shift = max(0, max(part.weight for part in held).bit_length() - limits.WEIGHT.bit_length())
    while max(part.weight for part in held) >> shift > limits.WEIGHT:
        shift += 1
    return [part._replace(weight=max(1, part.weight >> shift)) for part in held]


def _decoded(
    sync: Sync, layout: TensorLayout, group: ExchangeChannel, exchanged: GroupExchange, about: ContributionKey
) -> tuple[dict[int, WeightedUpdate], dict[int, str]]:
    """Contributions by rank, and why others are none."""
    parts: dict[int, WeightedUpdate] = {}
    broken: dict[int, str] = {}
    for rank, data in sorted(exchanged.payloads.items()):
        peer = group.ids[rank]
        try:
            weight, payload = _weight(data)
            parts[rank] = WeightedUpdate(peer, weight, sync.decode(about._replace(peer=peer), layout, payload))
        except ProtocolError as error:
            broken[rank] = str(error)
    for rank in _unlike(parts):
        broken[rank] = str(
            _miscounted("told, and most tell none" if parts[rank].weight else "none told, and others tell theirs")
        )
        del parts[rank]
    return {rank: part._replace(weight=max(part.weight, 1)) for rank, part in parts.items()}, broken


def _unlike(parts: Mapping[int, WeightedUpdate]) -> list[int]:
    """Ranks that tell tokens where more tell none, or none where as many tell theirs: those cannot be weighed together.

    One that errs, or wants to end the round for all, is left out of it by all.
    """
    told = [rank for rank, part in parts.items() if part.weight != UNTOLD]
    silent = [rank for rank in parts if rank not in told]
    return silent if len(silent) <= len(told) else told


def _weight(data: bytes) -> tuple[int, bytes]:
    """Tokens (or UNTOLD), and the payload behind them. Raises ProtocolError FF-SYNC-017."""
    tokens = _TOKENS.unpack_from(data)[0] if len(data) >= _TOKENS.size else TOKENS + 1
    if TOKENS < tokens < NOTHING:
        raise _miscounted(f"{tokens} tokens")
    return tokens, data[_TOKENS.size :]


def _miscounted(cause: str) -> ProtocolError:
    return ProtocolError("FF-SYNC-017", "a contribution counts its tokens wrongly", cause=cause)


def count(tokens: Any) -> int:
    """The tokens of a step or a round, as they can be told. Raises UsageError FF-SYNC-016."""
    try:
        number = operator.index(tokens)
    except TypeError:
        number = -1
    if not 0 <= number <= TOKENS:
        raise UsageError(
            "FF-SYNC-016",
            "the tokens of a round are not counted so",
            cause=f"tokens = {str(tokens)[:40]}; a whole number from 0 to {TOKENS} a round can be told",
            hint="count whole units, the same at all peers (tokens, sequences, samples): only their ratio matters",
        )
    return number


def claimed_roots(payloads: Mapping[int, bytes]) -> dict[int, bytes]:
    """The public state that each payload says it starts from; those that are no payload at all say nothing."""
    claimed: dict[int, bytes] = {}
    for rank, data in payloads.items():
        with contextlib.suppress(ProtocolError):
            claimed[rank] = describe(data).header.about.base_root
    return claimed


def check_roots(whole: Mapping[int, bytes], own: Hash) -> None:
    """Raises VerificationError FF-SYNC-006 when some ranks' public state (its root) differs from that of most."""
    tally = Counter(whole.values())
    if not tally or list(tally) == [own]:
        return
    common = max(tally, key=lambda root: (tally[root], root))
    others = sorted(rank for rank, root in whole.items() if root != common)
    who = f"parameters of rank {', '.join(map(str, others))} differ from the others'"
    held = f"{tally[common]} of {len(whole)} ranks hold {common[:4].hex()}"
    cause = held
    if not others:  # one's own is not among them
        who = "parameters of this peer differ from those of all payloads that count"
        late = "what it sent does not count: it came too late or is of an older exchange"
        cause = f"{held}, this peer {bytes(own)[:4].hex()}, and {late}"
    raise VerificationError(
        "FF-SYNC-006",
        who,
        cause=cause,
        hint="start from the same weights (sync.share() takes those of rank 0), or load the same checkpoint everywhere",
    )
