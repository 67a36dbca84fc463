"""Checks stacked proofs (V4): whether a run builds on the runs that its terms name.

    JobTerms.lineage of the child  =  (ledger, job and final root of the parent, *JobTerms.lineage of the parent)
    initial root of the child      =  root of what its method makes of the parent's final weights

So one hash, the child's job id, fixes the whole chain down to weights from a seed. Whoever has the child alone knows on
what it stands and has not seen that it does; with the parent's export both follow, and with every export of the
chain all of it does.
"""

from __future__ import annotations

from farflung.core import limits
from farflung.job.spec import AncestorRun, JobTerms
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync
from farflung.verify.replay_report import require


def check_lineage(terms: JobTerms) -> None:
    """Terms that name a start name what it was, and no others do. Raises VerificationError FF-VERI-125."""
    is_said = bool(terms.spec.model.start) == bool(terms.lineage)
    is_short = len(terms.lineage) <= limits.LINEAGE
    jobs = {ancestor.job for ancestor in terms.lineage}
    require(
        is_said and is_short and len(jobs) == len(terms.lineage),
        "FF-VERI-125",
        "the terms do not say on which runs this one stands",
        f"they name {len(terms.lineage)} of at most {limits.LINEAGE}, each once",
    )


def check_parent(child: JobTerms, parent: JobTerms, itself: AncestorRun, end: PublicState) -> None:
    """The run of `child` begins where the proven run of `parent`, whose public state ended as `end`, came to.

    Raises VerificationError FF-VERI-126 (it stands on another run, or on another chain behind it), FF-VERI-127 (its
    model has other tensors), FF-VERI-128 (it begins with other weights).
    """
    require(
        child.lineage == (itself, *parent.lineage),
        "FF-VERI-126",
        "the run does not stand on the run that was given",
        f"that one is job {itself.job.hex()[:16]}..., with {len(parent.lineage)} behind it",
    )
    require(child.layout == parent.layout, "FF-VERI-127", "the run it stands on is of a model with other tensors")
    first = Sync.of(child.spec).initial(end.params)
    require(
        first.root(child.layout) == child.initial_root,
        "FF-VERI-128",
        "the run does not begin with the weights that the run it stands on ended with",
    )
