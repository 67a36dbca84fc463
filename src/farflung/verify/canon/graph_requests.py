"""Defines the requests to the process that runs a job's graph (verify.io.graph_process), and its reply.

States, data and graph travel beside a request (train.blobs): the process maps them.
"""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobSpec, Tolerance
from farflung.train.blobs import Blob


class GraphRequest(Wire, frozen=True):
    """A job's program, from its parts. `data`: the packed data set, or the root of a large one (job.token_tree), of
    which `tokens` are packed leaves; `shipped`: verify.canon.graph_file; `public`: the public state whose weights
    border 0 leaves out, of whichever round.
    """

    spec: JobSpec
    layout: TensorLayout
    tolerance: Tolerance
    data: Blob
    tokens: Blob
    shipped: Blob
    public: Blob


class StepTrialRequest(GraphRequest, frozen=True, tag="try-step"):
    """Is the first step of a round, natively from `begin` to `end` on a member's batches, also the graph's step?

    Both in train.segments form, of `round`. `seconds`: of a processor, which the step may take.
    """

    round: int
    member: int
    begin: Blob
    end: Blob
    seconds: int


class AccusationRequest(GraphRequest, frozen=True, tag="accuse"):
    """Does the graph find the end of a segment false as well? `steps` from `first` on, of a round, by a seat."""

    round: int
    seat: int
    first: int
    steps: int
    start: Blob
    claimed: Blob


class GraphFinding(Wire, frozen=True, tag="found"):
    """Whether the graph finds another end than the one that is claimed. Of a trial never: that is an error."""

    is_false: bool


Request = StepTrialRequest | AccusationRequest
