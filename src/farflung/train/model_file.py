"""Writes and reads the header of a model file: one line of JSON with all that is needed to use the file alone.

A safetensors file carries text beside its tensors. Ours is one key, `farflung`, with canonical JSON (sorted keys, no
spaces, nothing left at its default): the same job gives the same bytes, whose hash is on the ledger. Nothing measured
is in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.crypto import NS_OUTPUT, PieceDigest
from farflung.core.errors import FarflungError, UsageError, VerificationError, VersionError
from farflung.core.file_header import FileFormat, other_version
from farflung.core.ids import Hash
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.proof_class import PROVEN, UNPROVEN
from farflung.job.spec import JobSpec, JobTerms, ModelSpec
from farflung.job.spec_checks import check
from farflung.train.blobs import Blob
from farflung.train.public_state import PublicState

KEY: Final = "farflung"
_HASH: Final = re.compile("[0-9a-f]{64}")
# No folder: that is its maker's affair.
_MODULE: Final = re.compile(r"[^`<>/\\]{1,255}:[A-Za-z_][A-Za-z0-9_]{0,255}")
FORMAT: Final = 1
_FORM: Final = FileFormat("model", FORMAT, "export it there: `farflung export` writes what other programs read")
HEAD_BYTES: Final = 64 << 20  # the longest head that is looked at
_FLOAT: Final = 4
_DTYPES: Final = {
    name: np.dtype(code)
    for name, code in [
        ("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("I64", "<i8"), ("I32", "<i4"), ("I16", "<i2"), ("I8", "i1"),
        ("U64", "<u8"), ("U32", "<u4"), ("U16", "<u2"), ("U8", "u1"), ("BOOL", "?"),
    ]
}  # fmt: skip


class _Version(msgspec.Struct, frozen=True):
    """What the card says of itself, in whatever form."""

    format: int


class ModelFileHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model of a file. `tokens`: whether a token is a byte of text or a number that only its maker can read.

    The sizes of blocks are the built-in GPT's; a model of the user's own has `module`, "file.py:function", and the
    hash of its source instead. `lineage`: jobs of the runs whose weights it began with, nearest first.
    """

    format: int
    kind: Literal["gpt", "module"]
    context: int
    vocabulary: int
    tokens: Literal["bytes", "ids"]
    name: str
    job: str
    rounds: int
    layers: int = 0
    width: int = 0
    heads: int = 0
    module: str = ""
    source: str = ""
    lineage: tuple[str, ...] = ()
    proof: str = ""  # the class of the work (job.proof_class); a file that says nothing is not proven

    @property
    def model(self) -> ModelSpec:
        """The model as a job names it."""
        if self.kind == "module":
            return ModelSpec(kind="module", context=self.context, vocabulary=self.vocabulary, module=self.module)
        return ModelSpec(
            layers=self.layers, width=self.width, heads=self.heads, context=self.context, vocabulary=self.vocabulary
        )


def of(terms: JobTerms, rounds: int) -> ModelFileHeader:
    """The card of the model that these terms gave after so many rounds."""
    spec, model = terms.spec, terms.spec.model
    said: dict[str, Any] = {
        "format": FORMAT,
        "kind": model.kind,
        "context": model.context,
        "vocabulary": model.vocabulary,
        "tokens": "bytes" if spec.data.is_text else "ids",
        "name": spec.name,
        "job": terms.id.hex(),
        "rounds": rounds,
        "lineage": tuple(ancestor.job.hex() for ancestor in terms.lineage),
        "proof": PROVEN if terms.is_proven else UNPROVEN,
    }
    if model.kind == "gpt":
        return ModelFileHeader(**said, layers=model.layers, width=model.width, heads=model.heads)
    file, _, function = model.module.rpartition(":")
    return ModelFileHeader(**said, module=f"{PurePath(file).name}:{function}", source=terms.module.hex())


def text(header: ModelFileHeader) -> str:
    """The card as it is in the file."""
    return msgspec.json.encode(header, order="sorted").decode()


def write(terms: JobTerms, public: PublicState) -> bytes:
    """The model file of a public state: the same state gives the same bytes, in any process."""
    return b"".join(pieces(terms, public))


def pieces(terms: JobTerms, public: PublicState) -> tuple[bytes, memoryview]:
    """The same in two parts: its head, as safetensors writes it, and the weights where they are. Names of a layout are
    sorted, as they are there.
    """
    head: dict[str, Any] = {"__metadata__": {KEY: text(of(terms, public.round))}}
    for tensor, place in terms.layout.slices():
        where = [_FLOAT * place.start, _FLOAT * place.stop]
        head[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": where}
    said = msgspec.json.encode(head)
    said += b" " * (-len(said) % 8)
    weights = np.ascontiguousarray(public.params, "<f4").data.cast("B")
    return len(said).to_bytes(8, "little") + said, weights


def read_text(data: Blob) -> str | None:
    """The text of the card as it is in a file's head, if there is one. Raises UsageError FF-TRAIN-100."""
    return _head(data)[1].get(KEY)


def _head(data: Blob) -> tuple[int, dict[str, str], dict[str, msgspec.Raw]]:
    """Where the tensors begin, what is said beside them, and what of each. Raises UsageError FF-TRAIN-100."""
    view = memoryview(data)
    length = int.from_bytes(view[:8], "little")
    if len(view) < 8 or length > min(HEAD_BYTES, len(view) - 8):
        raise _no_model("it does not begin like a safetensors file")
    try:
        head = msgspec.json.decode(view[8 : 8 + length], type=dict[str, msgspec.Raw])
        beside = msgspec.json.decode(head.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
    except (ValueError, RecursionError) as error:
        raise _no_model(f"its head is damaged: {error}") from None
    if len(head) > limits.TENSORS:
        raise _no_model(f"it has more than {limits.TENSORS} tensors")
    return 8 + length, beside, head


class _TensorPlace(msgspec.Struct, frozen=True):
    """What a head says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensors_of(data: Blob) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, as read-only views of it: one behind the other, and nothing beside them, as
    that format wants it. Raises UsageError FF-TRAIN-100.
    """
    start, _, head = _head(data)
    try:
        said = {name: msgspec.json.decode(raw, type=_TensorPlace) for name, raw in head.items()}
    except (ValueError, RecursionError) as error:
        raise _no_model(f"its head is damaged: {error}") from None
    view, end = memoryview(data).toreadonly()[start:], 0
    found: dict[str, NDArray[Any]] = {}
    for name, each in sorted(said.items(), key=lambda item: item[1].data_offsets):
        dtype, size = _DTYPES.get(each.dtype), each.data_offsets[1] - each.data_offsets[0]
        is_sound = dtype is not None and min(each.shape, default=0) >= 0 and each.data_offsets[0] == end
        if dtype is None or not is_sound or size != dtype.itemsize * math.prod(each.shape) or end + size > len(view):
            raise _no_model(f"tensor {name[:80]!r} is not where its head says")
        found[name] = np.frombuffer(view[end : end + size], dtype).reshape(each.shape)
        end += size
    if end != len(view):
        raise _no_model("it has bytes that are no tensor's")
    return found


def read(data: Blob) -> tuple[ModelFileHeader, Mapping[str, NDArray[Any]]]:
    """The card and the tensors of a model file, as views of it. Raises UsageError FF-TRAIN-100 (no such file), -101 (no
    card), VersionError FF-CORE-095 (of a later version).
    """
    said = read_text(data)
    if said is None:
        raise UsageError(
            "FF-TRAIN-101",
            "this file does not say what model it holds",
            cause=f"a model that farflung trained says so under the key `{KEY}` of its head",
            hint="name a run, or the model.safetensors that `farflung fetch` wrote",
        )
    try:
        _check_version(said)
        header = msgspec.json.decode(said, type=ModelFileHeader)
        check(JobSpec(name=header.name, model=header.model))
        tensors = tensors_of(data)
    except VersionError:
        raise
    except FarflungError as error:
        raise _no_model(error.message) from None
    except (ValueError, RecursionError) as error:
        raise _no_model(str(error)) from None
    if not _is_sayable(header):
        raise _no_model("it names no job, no number of rounds or no module that there can be")
    return header, tensors


def _check_version(said: str) -> None:
    """Raises VersionError FF-CORE-095. A file of an earlier form is read for ever; there is none so far."""
    version = msgspec.json.decode(said, type=_Version).format
    if version != FORMAT:
        raise other_version(_FORM, version)


def _is_sayable(header: ModelFileHeader) -> bool:
    """Whether what is only shown of a card may be shown: it ends on terminals and in the README of an export."""
    are_jobs = len(header.lineage) <= limits.LINEAGE and all(_HASH.fullmatch(job) for job in header.lineage)
    is_named = are_jobs and _HASH.fullmatch(header.job) and 0 <= header.rounds <= limits.ROUNDS
    is_own = _HASH.fullmatch(header.source) and _MODULE.fullmatch(header.module)
    is_classed = header.proof in ("", PROVEN, UNPROVEN)
    return bool(
        is_named and is_classed and (is_own if header.kind == "module" else not (header.source or header.module))
    )


def flat(header: ModelFileHeader, layout: TensorLayout, tensors: Mapping[str, NDArray[Any]]) -> Float32:
    """The file's parameters in the order of the model's layout. Raises VerificationError FF-TRAIN-102."""
    fit(header, layout, tensors)
    return layout.flatten(tensors)


def fit(header: ModelFileHeader, layout: TensorLayout, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raises VerificationError FF-TRAIN-102 where the tensors are not those of the layout; takes no memory."""
    wanted = {tensor.name: tensor.shape for tensor in layout.tensors}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if wanted != found or any(tensor.dtype != np.float32 for tensor in tensors.values()):
        odd = sorted(set(wanted.items()) ^ set(found.items()))[:1]
        raise VerificationError(
            "FF-TRAIN-102",
            f"the tensors of this file are not those of its {header.kind}",
            cause=f"{odd[0][0]} is missing, or has another shape" if odd else "they are not float32",
            hint="fetch the model again with `farflung fetch`",
        )


def gpt_layout(header: ModelFileHeader) -> TensorLayout:
    """The tensors of a built-in GPT, without building it."""
    return TensorLayout.of(gpt_shapes(header.model))


def _no_model(cause: str) -> UsageError:
    return UsageError(
        "FF-TRAIN-100",
        "this is not a model file of farflung",
        cause=cause[:200],
        hint="name a run, or the model.safetensors that `farflung fetch` wrote",
    )


def model_hash(*parts: Blob) -> Hash:
    """The digest under which a model file, given in parts, stands on the ledger."""
    found = PieceDigest(NS_OUTPUT, sum(map(len, parts)))
    for part in parts:
        found.update(part)
    return found.value()
