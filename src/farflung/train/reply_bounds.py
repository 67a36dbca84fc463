"""Bounds what a worker may reply, by what it was asked and by its job: a stranger's model may speak in its place.

Bytes are bounded before they are read, and values (numbers, texts, lists) before one of them becomes an object. A state
is a file of train.tensor_file, whose length follows from the layout; what else a reply holds is a few figures for each
tensor, step or segment. So a job of 400 kB of weights has replies of some megabytes, whatever a gibibyte is called by
who sends it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobSpec
from farflung.train import tensor_file, worker_messages
from farflung.train.sync_arithmetic import Sync

FIGURE: Final = 9  # bytes of the longest number
BORDER: Final = 256  # bytes of one core.commitments.BorderRoots
PROFILES: Final = 17  # lists of distances: honest noise, and shortcuts (train.noise_profile plays four)
SCORE: Final = 128  # bytes of one contribution's loss probe
ROW: Final = 8  # values of a border or a score, and of all that names one list of distances


class ReplyBound(NamedTuple):
    """What one reply may be, beside a WorkerFailure: its kind, its bytes, the values that it is made of, and the bytes
    of all blobs beside it.
    """

    kind: Any
    size: int = limits.REPLY_BYTES
    values: int = limits.REPLY_VALUES
    blobs: int = 0

    def with_more(self, size: int, values: int = 0) -> ReplyBound:
        """The same with so much more."""
        return self._replace(size=self.size + size, values=self.values + values)

    def with_blobs(self, size: int) -> ReplyBound:
        """The same with so many bytes beside it."""
        return self._replace(blobs=size)


class WorkerReplies:
    """What the worker of one job may reply. It follows the job from its SetupCommand on."""

    def __init__(self, layout: TensorLayout | None = None) -> None:
        """`layout`: the model's, as the terms say; None: not known before the worker has built it."""
        self.layout = layout
        self._spec = JobSpec()

    def to(self, request: worker_messages.Request) -> ReplyBound:
        """The bound of the reply to one request."""
        match request:
            case worker_messages.SetupCommand():
                self._spec = request.spec
                return ReplyBound(worker_messages.SetupResult)
            case worker_messages.InitializeCommand():
                return self._shapes().with_blobs(self._state)
            case worker_messages.LoadCommand() | worker_messages.RewindCommand() | worker_messages.MergeCommand():
                return self._shapes()
            case worker_messages.TrainCommand():
                return self._trained()
            case worker_messages.OpenSegmentCommand():
                return ReplyBound(worker_messages.OpenSegmentResult).with_blobs(4 * self._state)
            case worker_messages.RerunCommand():
                steps = self._spec.sync.steps
                return ReplyBound(worker_messages.RerunResult).with_more(FIGURE * steps, steps).with_blobs(self._state)
            case worker_messages.ReencodeCommand():
                return ReplyBound(worker_messages.ReencodeResult)
            case worker_messages.ProfileCommand():
                return self._profile()
            case worker_messages.EvaluateCommand() | worker_messages.BaselineCommand():
                return ReplyBound(worker_messages.LossResult)
            case worker_messages.HoldTokensCommand():
                return ReplyBound(worker_messages.HoldTokensResult)
            case worker_messages.LossProbeCommand():
                count = len(request.parts)
                return ReplyBound(worker_messages.LossProbeResult).with_more(SCORE * count, ROW * count)

    @property
    def _state(self) -> int:
        """Bytes of a state; of a model that nobody has built yet, of any that a worker may be given."""
        return limits.STATE_BYTES if self.layout is None else tensor_file.largest(self.layout)

    def _shapes(self) -> ReplyBound:
        bound = ReplyBound(worker_messages.StateResult)
        if self.layout is None:
            values = limits.TENSORS * (3 + limits.TENSOR_DIMENSIONS)
            return bound.with_more(limits.TENSORS * (limits.TENSOR_NAME_BYTES + FIGURE), values)
        return bound.with_more(len(encode(self.layout)), sum(3 + len(t.shape) for t in self.layout.tensors))

    def _trained(self) -> ReplyBound:
        steps, borders = self._spec.sync.steps, self._spec.segments + 1
        payload = limits.PAYLOAD_BYTES if self.layout is None else Sync.of(self._spec).bound(self.layout)
        size, values = FIGURE * steps + BORDER * borders, steps + ROW * borders
        return ReplyBound(worker_messages.TrainResult).with_more(size, values).with_blobs(payload + self._state)

    def _profile(self) -> ReplyBound:
        tensors = limits.TENSORS if self.layout is None else len(self.layout.tensors)
        lists = PROFILES * tensor_file.SECTIONS
        size = lists * (tensor_file.NAME_BYTES + FIGURE * tensors)
        return ReplyBound(worker_messages.ProfileResult).with_more(size, lists * (ROW + tensors))
