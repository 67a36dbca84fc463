"""Splits tokens into training and validation parts, packs both into one object, and refuses malformed ones.

Text is taken byte by byte: a token is a byte, and files are joined by one zero byte, of which text holds hardly any.
Packed form, little-endian: magic, version, dtype code, tokens of both parts, then the tokens themselves.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.canon.token_leaves import Tokens, TokenSource
from farflung.core.errors import ProtocolError, SpecError
from farflung.core.file_header import FileFormat, other_version
from farflung.job.spec import ModelSpec
from farflung.job.text_files import ZERO, File, check_text, draw, no_data

_HEAD: Final = struct.Struct("<4sHBxQQ")
_MAGIC: Final = b"FFDS"
_VERSION: Final = 1
_FORM: Final = FileFormat("data-set", _VERSION)
_DTYPES: Final[Mapping[int, np.dtype[Any]]] = {  # by code: bytes of one token
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}
_BLOCK: Final = 1 << 19  # tokens counted or packed at a time: bincount widens them to 8 bytes
_COUNTED: Final = 1 << 24  # of one part, for the entropy that is shown beside losses
HEAD_BYTES: Final = _HEAD.size


class Dataset(msgspec.Struct, frozen=True, eq=False):
    """Both parts are 1-D and of one dtype: uint8, uint16 or uint32."""

    train: TokenSource
    heldout: TokenSource


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """The smallest dtype for tokens below `vocabulary`."""
    return _DTYPES[1 if vocabulary <= 1 << 8 else 2 if vocabulary <= 1 << 16 else 4]


def pack(dataset: Dataset) -> bytes:
    """One byte string for one data set. Raises ValueError as `packed` does."""
    return b"".join(packed(dataset))


def packed(dataset: Dataset) -> Iterator[bytes | memoryview]:
    """The packed form piece by piece; both parts are non-empty and of one dtype (else ValueError)."""
    train, heldout = dataset.train, dataset.heldout
    code = train.dtype.itemsize
    if train.dtype != heldout.dtype or train.dtype != _DTYPES.get(code) or not (train.size and heldout.size):
        raise ValueError("both parts are non-empty and of one dtype: uint8, uint16 or uint32")
    yield _HEAD.pack(_MAGIC, _VERSION, code, train.size, heldout.size)
    for part in (train, heldout):
        for at in range(0, part.size, _BLOCK):
            yield np.ascontiguousarray(part[at : at + _BLOCK], _DTYPES[code]).data.cast("B")


def packed_bytes(dataset: Dataset) -> int:
    """Bytes of the packed form."""
    return _HEAD.size + dataset.train.dtype.itemsize * (dataset.train.size + dataset.heldout.size)


class PackedHead(NamedTuple):
    """What the head of a packed data set says: the dtype of its tokens, and how many each part has."""

    dtype: np.dtype[Any]
    train: int
    heldout: int


def read_head(data: bytes | memoryview, size: int) -> PackedHead:
    """The head of a packed data set of `size` bytes, which `data` begins.

    Raises ProtocolError FF-JOB-030, VersionError FF-CORE-095.
    """
    if not _HEAD.size <= size <= _HEAD.size + limits.DATA_BYTES or len(data) < _HEAD.size:
        raise _malformed(f"it has {size} bytes")
    magic, version, code, train, heldout = _HEAD.unpack_from(data)
    if magic == _MAGIC and version != _VERSION:
        raise other_version(_FORM, version)
    if magic != _MAGIC or code not in _DTYPES or data[7]:
        raise _malformed("its head is of another kind")
    if size != _HEAD.size + code * (train + heldout) or not train or not heldout:
        raise _malformed("its length is not what its head says")
    return PackedHead(_DTYPES[code], train, heldout)


def unpack(data: bytes | memoryview) -> Dataset:
    """The data set in a byte string, as read-only views of it.

    Raises ProtocolError FF-JOB-030, VersionError FF-CORE-095.
    """
    head = read_head(data, len(data))
    tokens = np.frombuffer(data, head.dtype, offset=_HEAD.size)
    return Dataset(tokens[: head.train], tokens[head.train :])


def _malformed(cause: str) -> ProtocolError:
    return ProtocolError("FF-JOB-030", "this is not a packed data set", cause=cause)


def check_dataset(dataset: Dataset, model: ModelSpec) -> None:
    """Raises SpecError FF-JOB-022 (a part is too short), FF-JOB-023 (a token outside the vocabulary)."""
    check_lengths(dataset, model)
    for name, part in (("training", dataset.train), ("validation", dataset.heldout)):
        most = max(int(part[at : at + _BLOCK].max()) for at in range(0, part.size, _BLOCK))
        if most >= model.vocabulary:
            raise SpecError(
                "FF-JOB-023",
                f"token {most} in the {name} data",
                cause=f"model.vocabulary = {model.vocabulary}, so tokens go from 0 to {model.vocabulary - 1}",
                hint=f"set vocabulary = {most + 1} in [model]; text needs 256",
            )


def check_lengths(dataset: Dataset, model: ModelSpec) -> None:
    """Raises SpecError FF-JOB-022 (a part is too short)."""
    for name, part in (("training", dataset.train), ("validation", dataset.heldout)):
        if part.size <= model.context:
            raise SpecError(
                "FF-JOB-022",
                f"too little {name} data",
                cause=f"{part.size} tokens hold no sequence of model.context + 1 = {model.context + 1}",
                hint="give more data, or set a smaller model.context"
                + ("" if name == "training" else ", or raise data.heldout"),
            )


def split_files(files: Sequence[File], heldout: float) -> Dataset:
    """Byte tokens of text files, each file wholly on one side; a single file is cut, its end held out.

    Files are held out in the order of their names' hashes while they fit into `heldout` of all bytes; if none
    fits, the smallest is. Each side is joined in the order of names, whatever the order of `files`.
    Raises SpecError FF-JOB-020 (nothing in them), FF-JOB-021 (not text).
    """
    full = _texts(files)
    if len(full) == 1:
        return split_tokens(np.frombuffer(full[0][1], np.uint8), heldout)
    chosen = _heldout_names(full, heldout)
    return Dataset(
        _joined([data for name, data in full if name not in chosen]),
        _joined([data for name, data in full if name in chosen]),
    )


def joined_files(files: Sequence[File]) -> Tokens:
    """Byte tokens of text files in the order of names, none held out. Raises SpecError FF-JOB-020, -021."""
    return _joined([data for _, data in _texts(files)])


def _texts(files: Sequence[File]) -> list[File]:
    full = sorted(file for file in files if file[1])
    if len({name for name, _ in full}) != len(full):
        raise ValueError("two files have one name")
    for name, data in full:
        check_text(name, data)
    if not full:
        raise no_data()
    return full


def _heldout_names(files: Sequence[File], heldout: float) -> set[str]:
    room = int(heldout * sum(len(data) for _, data in files))
    chosen: set[str] = set()
    for name, data in sorted(files, key=lambda file: (draw(file[0]), file)):
        if len(data) <= room:
            room -= len(data)
            chosen.add(name)
    return chosen or {min(files, key=lambda file: (len(file[1]), draw(file[0])))[0]}


def _joined(parts: list[bytes]) -> Tokens:
    return np.frombuffer(ZERO.join(parts), np.uint8)


def split_tokens(tokens: Tokens, heldout: float) -> Dataset:
    """The last `heldout` share is held out, at least one token. Raises SpecError FF-JOB-020 for fewer than two."""
    cut = train_part(tokens.size, heldout)
    return Dataset(tokens[:cut], tokens[cut:])


def train_part(tokens: int, heldout: float) -> int:
    """How many of so many tokens are trained on. Raises SpecError FF-JOB-020 for fewer than two."""
    if tokens < 2:
        raise no_data()
    return tokens - max(1, int(heldout * tokens))


def unigram_entropy(train: TokenSource, heldout: TokenSource, vocabulary: int = 256) -> float:
    """Nats per token of the validation part under the training part's frequencies, each count plus one.

    What a model that knows no context reaches. Both parts are non-empty; a token that is not below `vocabulary` counts.
    Of a part of more than 2^24 tokens so many are counted, in blocks that lie evenly apart.
    """
    seen, asked = _counts(train, vocabulary), _counts(heldout, vocabulary)
    symbols = max(len(seen), len(asked))
    seen, asked = (np.pad(each, (0, symbols - len(each))) for each in (seen, asked))
    log_share = np.log((seen + 1) / (int(seen.sum()) + symbols))
    return -math.fsum((asked * log_share).tolist()) / int(asked.sum())


def _counts(tokens: TokenSource, symbols: int) -> NDArray[np.int64]:
    total, blocks = np.zeros(symbols, np.int64), -(-tokens.size // _BLOCK)
    counted = min(blocks, _COUNTED // _BLOCK)
    for start in (index * blocks // counted * _BLOCK for index in range(counted)):
        found = np.bincount(tokens[start : start + _BLOCK], minlength=len(total))
        found[: len(total)] += total
        total = found
    return total
