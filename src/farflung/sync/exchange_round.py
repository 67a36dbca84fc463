"""Runs one exchange, in the background if asked: sends the payload, collects all others, and aggregates them.

The rules and the arithmetic are those of the job engine (train.sync_arithmetic): decode, merge in fixed point,
outer step. Here is only what a library adds: a contribution that cannot be decoded is left out, by everybody
alike, with its reason; and a rank that holds other parameters than the others is named, because every payload says
from which public state it starts. Before the payload stand the tokens of the round, four bytes, little-endian: the
weight of the contribution; 0 where the loop tells none, and then all weigh the same.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.payload import ContributionKey, describe
from farflung.core import limits
from farflung.core.errors import ProtocolError, UsageError, VerificationError
from farflung.core.ids import Hash
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.sync.group import GroupExchange, SyncGroup, too_few
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync

TAGS: Final = 4  # of a round: two phases, the sharing of weights, a check
SHARE, CHECK = 2, 3
UNTOLD: Final = 0  # instead of tokens

_TOKENS: Final = struct.Struct("<I")


class RoundAggregate(NamedTuple):
    """What an exchange gave: the aggregate of the round's fragment, who is in it, and what it cost."""

    change: Float32
    accepted: tuple[int, ...]
    left_out: Mapping[int, str]
    payload_bytes: int
    bytes_up: int
    bytes_down: int
    seconds: float


class SyncTerms(NamedTuple):
    """What all peers have agreed on beside the method: contributions that are needed, and whether norms are clipped."""

    quorum: int
    is_clipped: bool


def gather(
    sync: Sync,
    state: PublicState,
    layout: TensorLayout,
    group: SyncGroup,
    payload: bytes,
    terms: SyncTerms,
    tokens: int = UNTOLD,
) -> RoundAggregate:
    """Exchanges the round's payload, of so many tokens, and merges what came.

    Raises NetworkError FF-SYNC-010, FF-SYNC-011; VerificationError FF-SYNC-006 (parameters differ).
    """
    started = time.perf_counter()
    part = sync.fragment(state.round, layout)
    bound = _TOKENS.size + sync.bound(layout)
    exchanged = group.exchange(state.round * TAGS, _TOKENS.pack(tokens) + payload, bound, terms.quorum)
    payloads = {rank: data[_TOKENS.size :] for rank, data in exchanged.payloads.items()}
    check_roots(claimed_roots(payloads), state.root(layout))
    parts, broken = _decoded(sync, layout, group, exchanged, sync.about(state, layout, group.ids[0]))
    left_out = {**exchanged.missing, **broken}
    if len(parts) < terms.quorum:
        raise too_few(len(parts), terms.quorum, left_out)
    change = mean(merge(part.layout, list(parts.values()), "clip" if terms.is_clipped else "mean"))
    return RoundAggregate(
        change,
        tuple(parts),
        left_out,
        len(payload),
        exchanged.bytes_up,
        exchanged.bytes_down,
        time.perf_counter() - started,
    )


def _decoded(
    sync: Sync, layout: TensorLayout, group: SyncGroup, exchanged: GroupExchange, about: ContributionKey
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
    tokens = _TOKENS.unpack_from(data)[0] if len(data) >= _TOKENS.size else limits.WEIGHT + 1
    if tokens > limits.WEIGHT:
        raise _miscounted(f"{tokens} tokens")
    return tokens, data[_TOKENS.size :]


def _miscounted(cause: str) -> ProtocolError:
    return ProtocolError("FF-SYNC-017", "a contribution counts its tokens wrongly", cause=cause)


def count(tokens: int) -> int:
    """The tokens of a round, as they can be told. Raises UsageError FF-SYNC-016."""
    if not 1 <= tokens <= limits.WEIGHT:
        raise UsageError(
            "FF-SYNC-016",
            "the tokens of a round are not counted so",
            cause=f"{tokens} of a round; 1 to {limits.WEIGHT} can be told",
            hint="count larger units, the same at all peers (sequences, thousands of tokens): only their ratio matters",
        )
    return tokens


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
    raise VerificationError(
        "FF-SYNC-006",
        f"parameters of rank {', '.join(map(str, others))} differ from the others'",
        cause=f"{tally[common]} of {len(whole)} ranks hold {common[:4].hex()}",
        hint="start from the same weights (sync.share() takes those of rank 0), or load the same checkpoint everywhere",
    )
