"""Defines the events for a run's forecast: the planned quantities, and their comparison with measured ones."""

from __future__ import annotations

import msgspec

from farflung.core.events.base import Event


class FileCount(msgspec.Struct, frozen=True):
    """So many files of so many bytes together, for one `reason` (job.text_files.REASONS); `first` is one of them."""

    reason: str
    files: int
    bytes: int
    first: str = ""


class PlanEvent(Event, frozen=True, tag="plan"):
    """What the run will take, before anything is spent. Compared with what happened in `PlanComparisonEvent`."""

    name: str
    run: str
    model: str
    parameters: int
    rounds: int
    steps: int
    peers: int
    tokens: int
    sync_bytes: int
    ring_bytes: int
    memory_bytes: int
    seconds: float
    price: int
    escrow: int
    data_bytes: int
    sync: str
    cores: int = 0  # of this computer, which all local workers share; 0: not told
    baseline_seconds: float = 0.0  # that one machine will take on the same tokens; 0: none will
    sync_most: int = 0  # if rounds choose another way than the one that is foreseen; 0: not told
    way: str = ""  # how a round's payloads go, if it is known before
    up_round: int = 0  # of these, up the line of the member that sends most
    down_round: int = 0
    lines: str = ""  # which lines the plan assumes
    relay_price: int = 0  # pico-credits a GiB; 0: relays carry for nothing, or there are none
    relay_funds: int = 0  # pico-credits that are put aside for them
    validators: int = 1  # of the ledger
    committee_bytes: int = 0  # that are sent because there are several of them
    proof: str = ""  # the class that is foreseen (job.proof_class), in words
    data_files: int = 0  # text files that the data are made of; 0: they came as tokens, or it is not told
    left_out: tuple[FileCount, ...] = ()  # files of the data that are in no part of them
    noted: tuple[FileCount, ...] = ()  # files that are in them, and of which something is to be known
    unit_price: int = 0  # pico-credits a trained token; 0: not told
    is_text: bool = False  # a token is a byte of text


class PlanComparisonEvent(Event, frozen=True, tag="compared"):
    """One planned quantity against the measured one."""

    quantity: str
    unit: str
    planned: float
    measured: float
    most: float = 0.0  # planned at most; 0: there is no such bound
    cause: str = ""  # the likeliest of what lies off the plan; empty: nothing does, or the run shows none
