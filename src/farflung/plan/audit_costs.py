"""Computes how many audits a run will have and what each moves: expectations over the draw (verify.audit_sample).

A contribution is audited with probability 1 while its peer is on probation, with `rate` afterwards: one of its K
segments, each as likely. With N providers, V verifiers and the probability q_r in round r:

    audits   = N x sum of q_r
    asked    = sum over rounds of V (1 - (1 - q_r / V)^N), pairs of a round and a verifier that has work in it
    start    = (K - 1)/K x (weights + optimizer) + 1/K x optimizer, and what is carried beside the optimizer (residual,
               offset: plan.state_vectors); nothing is carried in round 0
    last     = (K - 1)/K x (weights + carried): after the last segment the verifier has them itself

An honest network is assumed in which nobody leaves: no accusation, hence no second verifier, no end that differs and
is fetched, and no probation but the first.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import msgspec

from farflung.job.proof_class import ODDS, may_be_outcome, probe_of
from farflung.job.spec import JobSpec
from farflung.plan.state_vectors import carried_vectors, inner_vectors


class ExpectedAudits(msgspec.Struct, frozen=True):
    """Expected numbers of a whole run."""

    fresh: float  # audits of round 0, whose states carry nothing private into it
    later: float  # of all other rounds
    asked: float  # pairs of a round and a verifier that has work in it

    @property
    def count(self) -> float:
        """All audits."""
        return self.fresh + self.later


def expected(spec: JobSpec) -> ExpectedAudits:
    """The audits that the draw brings on the average; none without verifiers."""
    members, verifiers = spec.network.providers, spec.verifiers
    if not verifiers:
        return ExpectedAudits(0.0, 0.0, 0.0)
    rate, known = float(rate_of(spec)), min(spec.audit.probation, spec.rounds)
    first = 1.0 if known else rate
    total = float(of_one(spec))
    asked = known * _busy(1.0, members, verifiers) + (spec.rounds - known) * _busy(rate, members, verifiers)
    return ExpectedAudits(members * first, members * (total - first), asked)


def of_one(spec: JobSpec) -> Fraction:
    """Audits of one peer's whole run that the draw brings on the average; exact, for prices."""
    if not spec.verifiers:
        return Fraction(0)
    known = min(spec.audit.probation, spec.rounds)
    return known + rate_of(spec) * (spec.rounds - known)


def most_of_one(spec: JobSpec) -> int:
    """What is paid for at most where one contribution is audited, in segments: the audit, and a canary with it."""
    return 1 + (1 + spec.audit.jackpot if spec.audit.canaries else 0)


def paid_of_one(spec: JobSpec) -> Fraction:
    """The same on the average, among verifiers that look."""
    return 1 + Fraction(spec.audit.canaries) * (1 + spec.audit.jackpot)


def rate_of(spec: JobSpec) -> Fraction:
    """The share of contributions that is drawn after probation."""
    return Fraction(min(max(spec.audit.rate, 0.0), 1.0))


def _busy(chance: float, members: int, verifiers: int) -> float:
    """Verifiers that have work in a round, on the average."""
    return verifiers * (1.0 - (1.0 - chance / verifiers) ** members)


class ExpectedProbes(msgspec.Struct, frozen=True):
    """Loss probes as far as they are known before the model is traced: rounds that are scored on the average, and what
    one verifier is paid for one of them, in tokens.
    """

    rounds: Fraction
    units: int


def scores(spec: JobSpec) -> ExpectedProbes:
    """Whether a job that may be outcome only will be is not known: it is assumed."""
    probe = probe_of(spec, is_proven=not may_be_outcome(spec))
    if probe is None:
        return ExpectedProbes(Fraction(0), 0)
    units = probe.tokens(spec.network.providers, spec.model.context)
    return ExpectedProbes(spec.rounds * Fraction(probe.odds, ODDS), units)


def longest(spec: JobSpec) -> int:
    """Tokens of a round's longest segment."""
    return spec.batch * spec.model.context * max(end - start for start, end in pairwise(spec.borders))


def fetched(spec: JobSpec, segment: int, *, is_fresh: bool) -> tuple[int, int]:
    """Vectors as long as the weights that an audit of one segment fetches: of the opened start, and of `last`, what the
    encoding was made of. `is_fresh`: in round 0, into which a peer carries nothing.
    """
    carried = 0 if is_fresh else carried_vectors(spec.sync)
    held = 0 if is_fresh and segment == 0 else inner_vectors(spec)
    weights = 0 if segment == 0 else 1  # those of the round's start are public
    is_last = segment == spec.segments - 1
    return weights + held + carried, 0 if is_last else 1 + carried


def moved(spec: JobSpec, audits: ExpectedAudits, size: Callable[[int], int]) -> float:
    """Bytes of states that peers send to verifiers, where `size` gives those of so many vectors."""
    count = spec.segments

    def one(is_fresh: bool) -> float:
        places = [fetched(spec, segment, is_fresh=is_fresh) for segment in range(count)]
        return sum(size(start) + size(last) for start, last in places) / count

    return audits.fresh * one(True) + audits.later * one(False)
