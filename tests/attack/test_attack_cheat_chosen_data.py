"""Data searched for so that training on it leads to a wanted end (Zhang et al. 2022): nobody asks which data it was."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from segment_play import FALSE, assert_false, stage

from farflung.train.contribution_trace import BorderRoots, TrainingStatistics
from farflung.train.shortcuts import chosen_data, interpolated


def test_an_end_that_other_data_lead_to_is_found_false() -> None:
    assert_false("chosen-data", 20)


def test_the_search_finds_data_that_lead_nearer_to_where_it_wants_to_be() -> None:
    """Else the test before would show nothing about it."""
    one = stage(0).segment
    wanted = interpolated(one).end.params
    assert wanted is not None

    def way(params: object) -> float:
        moved = np.asarray(params) - one.start
        return float(moved @ (wanted - one.start) / np.linalg.norm(moved))

    anyhow = [way(replace(one, member=1 + choice).honest().end.params) for choice in range(3)]
    assert way(chosen_data(one).end.params) > sum(anyhow) / 3


def test_there_is_no_place_in_a_trace_where_a_peer_could_name_its_data_or_rates() -> None:
    """What it commits to: counts and roots. Data order, rates and borders follow from the terms."""
    fields = {field.name for kind in (BorderRoots, TrainingStatistics) for field in msgspec.structs.fields(kind)}
    assert fields == {
        "round", "index", "steps", "params", "optimizer", "residual", "losses", "grad_norm", "tokens",
    }  # fmt: skip


def test_even_true_work_on_chosen_data_is_false() -> None:
    """The end is honestly trained to, from the committed start, by the right optimizer; only the batches differ."""
    one = stage(2)
    again, end = (chosen_data(one.segment).end for _ in range(2))
    assert (np.asarray(again.params) == np.asarray(end.params)).all()
    assert one.judged(end).finding is FALSE
