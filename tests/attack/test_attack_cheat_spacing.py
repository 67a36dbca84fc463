"""Borders that lie farther apart than the terms say, so that fewer steps have to be made (Fang et al. 2023)."""

from __future__ import annotations

from dataclasses import replace

from segment_play import FALSE, OPTIMIZERS, assert_false, stage


def test_half_of_the_steps_at_twice_the_rate_are_found_false() -> None:
    assert_false("spacing", 20)


def test_an_end_of_fewer_steps_is_found_false_even_if_its_optimizer_counts_all() -> None:
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        short = one.segment.made(steps=one.segment.steps[:1]).end
        assert one.judged(replace(short, step=one.right.step)).finding is FALSE
