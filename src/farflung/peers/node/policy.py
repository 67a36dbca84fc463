"""Decides which jobs a lending node accepts, and which passes it shows at relays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from farflung.core import limits, relay_passes
from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import format_credits
from farflung.core.relay_passes import SignedRelayPass
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import format_rate
from farflung.host.io.machine_probe import torch_build
from farflung.job import proof_class
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import JobTerms
from farflung.job.spec_checks import check
from farflung.ledger.transactions import LeaseRole
from farflung.net.relay_pass_checks import is_current
from farflung.peers.node.job_fit import ClassPrices
from farflung.peers.protocol import messages
from farflung.peers.protocol.image_check import check_image
from farflung.plan.state_vectors import owed_rate
from farflung.plan.worker_memory import memory


class LeasePolicy(NamedTuple):
    """One node's: its ledger and role, what it asks for a unit (pico-credits), its stake, memory, and its image: the
    digest of its farflung, looked up where a job asks for one. `allow_modules`: whether foreign Python may run here.
    `drawn_only`: no job whose requester named the verifiers. `upload`: bytes a second of its line, 0: unknown.
    """

    chain: Hash
    role: LeaseRole
    unit_price: int
    stake: int
    memory_bytes: int
    image: Callable[[], Hash]
    allow_modules: bool = False
    drawn_only: bool = False
    prices: ClassPrices = ClassPrices()
    upload: Callable[[], float] = lambda: 0.0

    def judge(self, proposer: PeerId, proposal: messages.LeaseOfferRequest) -> None:
        """The right ledger, its price, a job that makes sense, memory that is there. Raises PolicyError."""
        if proposal.chain != self.chain:
            raise PolicyError("FF-APP-044", "the job is on another ledger")
        if proposal.terms.requester != proposer:
            raise PolicyError("FF-APP-094", "a job is proposed by its own requester")
        if proposal.role is not self.role:
            raise PolicyError("FF-APP-085", "this node does not lend itself for that", cause=proposal.role.name)
        terms = proposal.terms
        is_module = terms.spec.model.kind == "module" or terms.module != ZERO_HASH
        asked = self.prices.ask(self.unit_price, is_outcome=not terms.is_proven, is_module=is_module)
        pays, asks = format_credits(proposal.unit_price), format_credits(asked)
        if proposal.unit_price < asked:
            raise PolicyError(
                "FF-APP-045",
                "the job pays less than this node asks",
                cause=f"it pays {pays} credits a unit, the node asks {asks}",
                hint="raise unit_price, or hire another provider",
            )
        proposal.terms.layout.check()
        check(proposal.terms.spec)
        if (fault := self._fault(proposal)) is not None:
            raise PolicyError("FF-APP-073", "the proposal does not fit together", cause=fault)
        if not self.allow_modules and is_module:
            raise PolicyError(
                "FF-APP-574",
                "this node runs no models of foreign Python",
                cause="the job's model is a module of its requester's",
                hint='hire a node that allows them (farflung lend --allow-modules), or use model.kind = "gpt"',
            )
        if self.drawn_only and proposal.terms.spec.audit.verifiers:
            raise PolicyError(
                "FF-APP-681",
                "this node takes no job whose requester named the verifiers",
                cause="it was started with --drawn-only",
                hint="hire another provider, or leave audit.verifiers out",
            )
        check_image(proposal.terms, self.image)
        self._check_line(proposal.terms)
        if needs(proposal) > self.memory_bytes:
            raise PolicyError("FF-APP-048", "the job needs more memory than this node has")

    def _check_line(self, terms: JobTerms) -> None:
        """Who sends what an audit asks for too slowly is found to withhold it, and loses stake for its line."""
        needed, known = owed_rate(terms.spec, terms.layout), self.upload()
        if self.role is LeaseRole.TRAIN and 0 < known < needed:
            raise PolicyError(
                "FF-APP-693",
                "this node's line is too slow for what audits of the job may ask of it",
                cause=f"it sends {format_rate(8 * known)}, and a state of this model needs {format_rate(8 * needed)}",
                hint="hire another provider; its owner may raise up_mbit in network.toml",
            )

    def _fault(self, proposal: messages.LeaseOfferRequest) -> str | None:
        """What would make this node work unpaid, lock more than it has, or need more memory than was judged."""
        spec = proposal.terms.spec
        if not 0 <= proposal.dataset_bytes <= limits.DATA_BYTES:
            return f"a data set of {proposal.dataset_bytes} bytes"
        if not 0 < proposal.worker_bytes <= limits.TRACED_BYTES:
            return f"a worker of {proposal.worker_bytes} bytes"
        if not 0 <= proposal.stake <= self.stake:
            return f"a stake of {format_credits(proposal.stake)} credits, the node has {format_credits(self.stake)}"
        if proposal.stake != proposal.terms.stake:
            return (
                f"a stake of {format_credits(proposal.stake)}, and {format_credits(proposal.terms.stake)} in the terms"
            )
        if (spec.network.image == "mine") != (proposal.terms.image != ZERO_HASH):
            return "an image is named in the terms or asked for in the job, and not in both"
        if fault := proof_class.fault(proposal.terms, proposal.unit_price):
            return fault
        if self.role is LeaseRole.TRAIN and proposal.units_max < spec.rounds * spec.round_tokens:
            return f"{proposal.units_max} units are paid, the work has {spec.rounds * spec.round_tokens}"
        if spec.model.kind == "gpt" and proposal.terms.layout != TensorLayout.of(gpt_shapes(spec.model)):
            return "the layout is not that of the model"
        return None


def needs(proposal: messages.LeaseOfferRequest) -> int:
    """Bytes of memory that a job's worker takes: what its requester planned, and no less than its sizes say.

    The worker is bounded by what was planned alone (host.worker_limits): who plans too little has it ended.
    """
    terms = proposal.terms
    formed = memory(terms.spec, terms.layout, proposal.dataset_bytes, torch=torch_build()).worker
    return max(formed, proposal.worker_bytes)


def check_passes(passes: tuple[SignedRelayPass, ...], payer: PeerId, own: PeerId, now: int) -> None:
    """A requester hands out what it pays for itself, and for this node: a relay would bill others otherwise.

    `now`: this node's clock, seconds since 1970; relays serve nobody for a pass that does not count now.
    Raises PolicyError FF-APP-241.
    """
    if len(passes) > limits.PLACES or not all(_is_for(s, payer, own, now) for s in passes):
        raise PolicyError(
            "FF-APP-241",
            "a pass is none of this lease's",
            cause=f"more than {limits.PLACES}, or one is not its requester's, or not for this node, or not for now",
            hint="clocks that differ by more than a minute show as this, too",
        )


def _is_for(signed: SignedRelayPass, payer: PeerId, own: PeerId, now: int) -> bool:
    toll = signed.toll
    return (
        toll.payer == payer
        and own in toll.holders
        and is_current(toll, now)
        and relay_passes.is_well_formed(toll)
        and relay_passes.is_pass_signed(signed)
    )
