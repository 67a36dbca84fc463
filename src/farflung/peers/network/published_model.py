"""Defines the record of a published model: who publishes it, under which name and licence, and which job made it.

    model.publish   SignedModelRecord   nothing        then its object is left here, by the messages of peers.transfer
    model.find      ModelQuery          ModelReply     the records of that name
    model.withdraw  ModelWithdrawal     nothing        the caller's own record of that name, and its object, are deleted

A record is its publisher's word. What it claims follows from elsewhere: the job is the hash of its terms, which name
what it stands on; the ledger's row of the job names its requester, its end and the root of its last state; and whoever
has the object computes that root from it.
"""

from __future__ import annotations

import re
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_MODEL_RECORD, is_signed
from farflung.core.errors import FarflungError, ProtocolError, UsageError, VerificationError
from farflung.core.ids import ID_BYTES, Hash, PeerId, Signature
from farflung.job.spec import JobTerms
from farflung.ledger.table_rows import JobRow, JobState
from farflung.peers.network.invitation import is_name
from farflung.store.sealed_objects import ObjectManifest, check_manifest
from farflung.train import tensor_file

PUBLISH, FIND, WITHDRAW = "model.publish", "model.find", "model.withdraw"
FORMAT: Final = 1
PREFIX: Final = "net:"  # of `model.start`
OPEN_KEY: Final = bytes(32)  # objects are sealed; everybody may open a published one
LEAST_DIGITS: Final = 8  # of an account, that tell publishers apart
_LICENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*( (AND|OR|WITH) [A-Za-z0-9][A-Za-z0-9.+-]*){0,3}")
_ACCOUNT: Final = re.compile(rf"[0-9a-f]{{{LEAST_DIGITS},{2 * ID_BYTES}}}")


class PublishedModelRecord(Wire, frozen=True):
    """`account` publishes under `name` the last public state of the job of these terms, whose root is `root`.

    `terms`: the canonical encoding of the job's terms. `manifest`: of the state's bytes, sealed under OPEN_KEY.
    """

    format: int
    chain: Hash
    account: PeerId
    name: str
    licence: str
    root: Hash
    terms: bytes
    manifest: ObjectManifest


class SignedModelRecord(Wire, frozen=True):
    """A record and its publisher's signature under NS_MODEL_RECORD."""

    record: PublishedModelRecord
    signature: Signature


class ModelQuery(Wire, frozen=True):
    """Models of this name, by accounts whose hexadecimal key begins like this; empty: by anybody."""

    name: str
    account: str = ""


class ModelWithdrawal(Wire, frozen=True):
    """The name of a model that the account which asks has published, and takes back."""

    name: str


class ModelReply(Wire, frozen=True):
    """The records that were found, `limits.MODELS_FOUND` at most."""

    found: tuple[SignedModelRecord, ...]


def query_of(start: str) -> ModelQuery:
    """What `net:NAME` or `net:ACCOUNT/NAME` asks for. Raises UsageError FF-APP-652."""
    account, _, name = start.removeprefix(PREFIX).rpartition("/")
    if not is_name(name) or (account and not _ACCOUNT.fullmatch(account)):
        raise UsageError(
            "FF-APP-652",
            f"{start[:80]!r} names no published model",
            cause=f"a name has up to {limits.NETWORK_NAME_CHARACTERS} lower-case letters, digits and hyphens; an"
            f" account is given by {LEAST_DIGITS} hexadecimal digits or more",
            hint='write it like model.start = "net:NAME" or "net:ACCOUNT/NAME"',
        )
    return ModelQuery(name, account)


def check_name(name: str) -> None:
    """Raises UsageError FF-APP-652 unless a model can be published under this name."""
    if not is_name(name):
        raise UsageError(
            "FF-APP-652",
            f"a model cannot be published as {name[:80]!r}",
            cause=f"a name has up to {limits.NETWORK_NAME_CHARACTERS} lower-case letters, digits and hyphens",
            hint="--name my-model, without net: or an account: others start from net:my-model",
        )


def check_licence(licence: str) -> None:
    """Raises UsageError FF-APP-645 unless it has the form of an SPDX expression."""
    if len(licence) > limits.LICENCE_CHARACTERS or not _LICENCE.fullmatch(licence):
        raise UsageError(
            "FF-APP-645",
            f"{licence[:60]!r} is not a licence's name",
            cause="an SPDX expression has identifiers of letters, digits, dots, hyphens, joined by AND, OR or WITH",
            hint="--licence Apache-2.0, --licence CC-BY-4.0, or --licence LicenseRef-NAME for your own",
        )


def check_record(signed: SignedModelRecord, chain: Hash) -> JobTerms:
    """The terms that a record of this chain carries.

    Raises VerificationError FF-APP-643 (not signed by its account for this chain), ProtocolError FF-APP-646 (its
    values), UsageError FF-APP-645 (its licence).
    """
    record = signed.record
    is_own = record.chain == chain and is_signed(record.account, signed.signature, NS_MODEL_RECORD, encode(record))
    if not is_own:
        raise untrue("it is not signed by its account for this network")
    if record.format != FORMAT or not is_name(record.name) or record.manifest.size > limits.MODEL_BYTES:
        raise ProtocolError("FF-APP-646", "a model's record cannot be used", cause="its format, name or size is odd")
    check_licence(record.licence)
    try:
        check_manifest(record.manifest)
        terms = decode(record.terms, JobTerms, limits.LOG_RECORD_BYTES)
    except FarflungError as error:
        raise ProtocolError("FF-APP-646", "a model's record cannot be used", cause=error.message) from error
    most = tensor_file.largest(terms.layout)  # or a small job's record would have its readers fetch gigabytes
    if record.manifest.size > most:
        cause = f"it has {record.manifest.size} bytes, and a state of its job at most {most}"
        raise ProtocolError("FF-APP-646", "a model's record cannot be used", cause=cause)
    return terms


def job_fault(row: JobRow | None, terms: JobTerms, account: PeerId, root: Hash) -> str:
    """What keeps the ledger's row from proving that this job of `account` came to `root`; empty if it does."""
    if row is None or row.job != terms.id:
        return "the ledger does not know its job"
    if row.requester != account:
        return "another account paid for its job"
    if row.state is not JobState.SETTLED:
        return f"its job is {row.state.name.lower()}, not settled"
    if not terms.spec.verifiers:
        return "no verifier checked its job"
    return "" if row.root == root else "the ledger's root of its job is another one"


def untrue(cause: str) -> VerificationError:
    """FF-APP-643: a published model is not what its record says."""
    return VerificationError(
        "FF-APP-643",
        "a published model does not hold",
        cause=cause,
        hint="start from another model, or ask its publisher to publish it again",
    )
