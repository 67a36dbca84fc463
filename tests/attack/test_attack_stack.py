"""Runs that claim to stand on another run, and do not (V4)."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from verify_story import NO_AUDITS, SPEC, Story

from farflung.core import limits
from farflung.core.crypto import digest
from farflung.core.errors import VerificationError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import AncestorRun, JobTerms
from farflung.ledger.transactions import JobCancel
from farflung.train.public_state import PublicState
from farflung.verify.run_replay import prove_base, verify_run

OTHER = digest("test/other")
replace = msgspec.structs.replace
SHORT = replace(SPEC, rounds=1, audit=NO_AUDITS)


def told(lies: Any = None, **about: Any) -> Story:
    """A story of one round."""
    return Story(lies, **{"spec": SHORT, "done": 1, **about})


@pytest.fixture(scope="module")
def parent() -> Story:
    return told()


@pytest.fixture(scope="module")
def child(parent: Story) -> Story:
    return told(parent=parent, spec=replace(SHORT, name="child", seed=2))


def refused(child: Story, code: str, *parents: Story) -> None:
    with pytest.raises(VerificationError, match=code):
        verify_run(child.export(), None, [story.export() for story in parents])


def test_a_run_that_stands_on_another_is_true_with_it_and_says_so_without_it(parent: Story, child: Story) -> None:
    alone = verify_run(child.export())
    assert (alone.lineage, alone.parents) == ((parent.terms.id.hex(),), 0)
    assert verify_run(child.export(), None, [parent.export()]).parents == 1


def test_a_chain_of_three_is_proved_from_end_to_end(parent: Story, child: Story) -> None:
    third = told(parent=child, spec=replace(SHORT, name="third", seed=3))
    report = verify_run(third.export(), None, [child.export(), parent.export()])
    assert report.parents == 2
    assert report.lineage == (child.terms.id.hex(), parent.terms.id.hex())


def test_a_chain_with_a_gap_is_refused(parent: Story, child: Story) -> None:
    """The middle is left out, by who shows the chain or by the terms themselves."""
    third = told(parent=child, spec=replace(SHORT, name="third", seed=3))
    refused(third, "FF-VERI-126", parent)

    def forget(terms: JobTerms) -> JobTerms:
        return replace(terms, lineage=terms.lineage[:1])

    refused(told({"terms": forget}, parent=child), "FF-VERI-126", child)


def test_more_parents_than_there_are_runs_behind_is_refused(parent: Story, child: Story) -> None:
    refused(child, "FF-VERI-126", parent, parent)


def test_weights_that_are_not_the_parents_are_refused(parent: Story) -> None:
    """Everything after them is computed, signed and paid from the other weights; the terms name them."""

    def other(initial: PublicState) -> PublicState:
        params = initial.params.copy()
        params[5] = np.nextafter(params[5], np.float32(9))
        return PublicState(0, params, initial.vectors)

    liar = told(parent=parent)
    state = other(liar.public if liar.public.round == 0 else liar.sync.initial(parent.public.params))

    def terms(truth: JobTerms) -> JobTerms:
        return replace(truth, initial_root=state.root(truth.layout))

    lying = told({"initial": other, "terms": terms}, parent=parent)
    assert verify_run(lying.export()).rounds == 1  # alone it agrees with itself
    refused(lying, "FF-VERI-128", parent)


def test_a_momentum_that_is_carried_in_is_refused(parent: Story) -> None:
    """What is public besides the weights begins at nothing: it would be a degree of freedom that no terms fix."""

    def warm(initial: PublicState) -> PublicState:
        return PublicState(0, initial.params.copy(), {n: v + np.float32(1) for n, v in initial.vectors.items()})

    state = warm(told(parent=parent).sync.initial(parent.public.params))

    def terms(truth: JobTerms) -> JobTerms:
        return replace(truth, initial_root=state.root(truth.layout))

    refused(told({"initial": warm, "terms": terms}, parent=parent), "FF-VERI-128", parent)


@pytest.mark.parametrize("field", ["chain", "job", "root"])
def test_a_parent_that_the_terms_name_wrongly_is_refused(parent: Story, field: str) -> None:
    def lie(terms: JobTerms) -> JobTerms:
        return replace(terms, lineage=(replace(terms.lineage[0], **{field: OTHER}),))

    refused(told({"terms": lie}, parent=parent), "FF-VERI-126", parent)


def test_a_forged_parent_is_refused(parent: Story, child: Story) -> None:
    """Of the same job and with the same end, but one of its payloads is another."""
    export = parent.export()
    forged = replace(export, payload=lambda name: export.payload(name)[:-1] + b"x")
    with pytest.raises(VerificationError):
        verify_run(child.export(), None, [forged])


def test_a_parent_on_another_ledger_is_refused(child: Story) -> None:
    """Whoever forges a ledger can prove anything on it: the child's terms name the one that was meant."""
    elsewhere = told({"genesis": lambda genesis: replace(genesis, name="forged")})
    assert verify_run(elsewhere.export()).rounds == 1
    refused(child, "FF-VERI-126", elsewhere)


def test_a_parent_that_came_to_no_model_is_refused() -> None:
    lies: dict[str, Any] = {"finish": lambda _: [], "settle": lambda op: JobCancel(op.job)}
    failed = told(lies, done=0)
    with pytest.raises(VerificationError, match="FF-VERI-129"):
        prove_base(failed.export())
    refused(told(parent=failed), "FF-VERI-129", failed)


def test_a_parent_without_an_end_is_refused(child: Story) -> None:
    cut = told()
    cut.records.pop()
    refused(child, "FF-VERI-004", cut)


def test_a_swapped_layout_is_refused(parent: Story) -> None:
    """The same number of weights under other names and shapes: they would mean something else."""
    swapped = TensorLayout.of({"alpha": (32, 40), "beta": (600,), "gamma": (16, 8)})
    assert swapped.size == parent.layout.size
    refused(told(parent=parent, layout=swapped), "FF-VERI-127", parent)


def without_lineage(terms: JobTerms) -> JobTerms:
    return replace(terms, lineage=())


def of_one_that_comes_twice(terms: JobTerms) -> JobTerms:
    return replace(terms, lineage=(*terms.lineage, *terms.lineage))


def too_long(terms: JobTerms) -> JobTerms:
    more = tuple(AncestorRun(OTHER, digest("test/job", bytes([i])), OTHER) for i in range(limits.LINEAGE))
    return replace(terms, lineage=(*terms.lineage, *more))


@pytest.mark.parametrize("lie", [without_lineage, of_one_that_comes_twice, too_long])
def test_terms_that_do_not_say_on_what_they_stand_are_refused(parent: Story, lie: Any) -> None:
    refused(told({"terms": lie}, parent=parent), "FF-VERI-125")


def test_a_lineage_without_a_start_is_refused(parent: Story) -> None:
    """Terms that claim a parent and do not begin with it: they would borrow its name."""
    claim = AncestorRun(parent.genesis.chain, parent.terms.id, OTHER)
    refused(told({"terms": lambda terms: replace(terms, lineage=(claim,))}), "FF-VERI-125")
