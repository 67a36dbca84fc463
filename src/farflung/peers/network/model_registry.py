"""Keeps the models that are published on a network, at one of its seats: records, and objects by chunks.

    models/RECORDS   ACCOUNT-NAME.record, the signed record of each
    models/objects   the sealed bytes (store.io.disk_store), each chunk checked by its hash before it is written

A record comes first and is held against the ledger; only then may its publisher leave the object that it names. Bounds:
models and bytes in all, models and bytes of an account, and what the disk must keep free. A name is an account's until
it takes the name back: nobody changes what it means. A settled job stands for one name, so that each name costs the
price of a job that was checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, PolicyError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import read_bounded
from farflung.core.units import format_bytes
from farflung.host.io.machine_probe import disk_bytes
from farflung.ledger.table_rows import JobRow
from farflung.peers.network.published_model import (
    ModelQuery,
    ModelReply,
    PublishedModelRecord,
    SignedModelRecord,
    check_record,
    job_fault,
)
from farflung.peers.transfer.objects import BEGIN, FINISH, ObjectServer
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest

FREE_BYTES: Final = limits.GIB  # that a seat's disk keeps for its ledger
ACCOUNT_SHARE: Final = 4  # of all bytes, for one account
PENDING_SECONDS: Final = 3600.0  # for a publisher to leave the object of its record
_SUFFIX: Final = ".record"
_DAMAGED: Final = frozenset({"FF-STOR-012", "FF-STOR-013"})


class _ModelStore(DiskObjectStore):
    """Objects whose chunks are checked when they come, and when they are read.

    Whoever begins one again does not have all of it checked again: ten gigabytes take a seat seconds, in which it signs
    no block. Only one that was found damaged when it was read is looked through, and repaired.
    """

    def __init__(self, root: Path, label: str) -> None:
        super().__init__(root, label)
        self._doubted: set[Hash] = set()

    def chunk(self, object_id: Hash, index: int) -> bytes:
        """As any store's; who finds it damaged has it looked through when it is begun again."""
        try:
            return super().chunk(object_id, index)
        except VerificationError as error:
            if error.code in _DAMAGED:
                self._doubted.add(object_id)
            raise

    def begin(self, manifest: ObjectManifest) -> tuple[int, ...]:
        """The chunks that are missing."""
        if manifest.id not in self._doubted:
            if self.has(manifest.id):
                return ()
            if (begun := self._partial.get(manifest.id)) is not None:
                return tuple(sorted(begun[1]))
        self._doubted.discard(manifest.id)
        return super().begin(manifest)


class ModelRegistry:
    """The models that one seat keeps. `jobs` finds a job's row on the ledger; `most`: bytes of all models."""

    def __init__(
        self,
        folder: Path,
        chain: Hash,
        jobs: Callable[[Hash], JobRow | None],
        most: int,
        free: Callable[[Path], int] = disk_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads what is kept; what belongs to no record is deleted."""
        self._folder, self._chain, self._jobs, self._most = folder, chain, jobs, most
        self._free, self._clock = free, clock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._disk = _ModelStore(folder / "objects", "network.model")
        self._objects = ObjectServer(self._disk, limits.MODEL_BYTES)
        self._pending: dict[PeerId, tuple[float, SignedModelRecord]] = {}
        self._kept = {(each.record.account, each.record.name): each for each in self._stored()}
        for path in (folder / "objects").iterdir():
            if path.stem not in {each.record.manifest.id.hex() for each in self._kept.values()}:
                path.unlink()

    def _stored(self) -> Iterator[SignedModelRecord]:
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                signed = decode(read_bounded(path, limits.MODEL_RECORD_BYTES), SignedModelRecord, limits.CONTROL_BYTES)
                check_record(signed, self._chain)
            except (OSError, FarflungError):
                continue  # damaged: its publisher may publish it again
            if self._disk.has(signed.record.manifest.id):
                yield signed

    def find(self, query: ModelQuery) -> ModelReply:
        """The models of a name."""
        found = [
            each
            for (account, name), each in sorted(self._kept.items())
            if name == query.name and account.hex().startswith(query.account)
        ]
        return ModelReply(tuple(found[: limits.MODELS_FOUND]))

    def publish(self, peer: PeerId, signed: SignedModelRecord) -> None:
        """Admits a record of this peer's: it may leave the object now. The same again changes nothing.

        Raises PolicyError FF-APP-644 (not its own, or the ledger does not prove it), FF-APP-647 (its name is taken),
        FF-APP-648 (no room), FF-APP-655 (its job stands for another name), and what check_record raises.
        """
        record, now = signed.record, self._clock()
        terms = check_record(signed, self._chain)
        fault = job_fault(self._jobs(terms.id), terms, record.account, record.root)
        if fault or record.account != peer:
            raise unproven(fault or "another account signed its record")
        known = self._kept.get((record.account, record.name))
        if known == signed:
            return
        if known is not None:
            raise PolicyError(
                "FF-APP-647",
                f"this account has published another model as {record.name}",
                cause="a name means one model",
                hint=f"--name {record.name[:-2] or record.name}-2, or farflung publish --withdraw {record.name} first",
            )
        named = next((each.record.name for each in self._kept.values() if each.record.terms == record.terms), "")
        if named:
            raise PolicyError(
                "FF-APP-655",
                f"the job of this model stands for the name {named} already",
                cause="each name stands on a settled job of its own: names would cost nothing else",
                hint=f"farflung publish --withdraw {named}, then publish it as {record.name}",
            )
        for who in [who for who, (since, _) in self._pending.items() if now - since >= PENDING_SECONDS]:
            self._drop(self._pending.pop(who)[1].record)
        self._check_room(record)
        left = self._pending.pop(peer, None)
        self._pending[peer] = (now, signed)
        if left is not None:
            self._drop(left[1].record)

    def withdraw(self, peer: PeerId, name: str) -> None:
        """Forgets this peer's model of that name; bytes that no other model has are deleted.

        Raises PolicyError FF-APP-654 where it has none.
        """
        kept = self._kept.pop((peer, name), None)
        if kept is None:
            raise unpublished(name)
        self._path(kept.record).unlink(missing_ok=True)  # bytes of no record are deleted at the next start
        self._drop(kept.record)

    def _path(self, record: PublishedModelRecord) -> Path:
        return self._folder / f"{record.account.hex()}-{record.name}{_SUFFIX}"

    def serve(self, peer: PeerId, method: str, body: bytes) -> bytes:
        """A request for an object: everybody reads; a publisher leaves what its record names."""
        if method == BEGIN:
            manifest = decode(body, ObjectManifest, limits.CONTROL_BYTES)
            known = [each for each in self._kept.values() if each.record.account == peer]
            known += [self._pending[peer][1]] if peer in self._pending else []
            if all(each.record.manifest != manifest for each in known):
                raise unproven("no record of it was accepted before")
        reply = self._objects.serve(peer, method, body)
        if method == FINISH:
            self._keep(peer, decode(body, Hash, limits.CONTROL_BYTES))
        return reply

    def _keep(self, peer: PeerId, object_id: Hash) -> None:
        self._objects.keep(object_id)
        pending = self._pending.get(peer)
        if pending is None or pending[1].record.manifest.id != object_id:
            return
        signed, record = pending[1], pending[1].record
        write_atomic(self._path(record), encode(signed), "network.model")
        self._kept[record.account, record.name] = signed
        del self._pending[peer]

    def _check_room(self, record: PublishedModelRecord) -> None:
        held = [each.record for each in self._kept.values()]
        held += [each.record for who, (_, each) in self._pending.items() if who != record.account]
        own = [each for each in held if each.account == record.account]
        size, free = record.manifest.size, self._free(self._folder)
        coming = sum(each.record.manifest.size for who, (_, each) in self._pending.items() if who != record.account)
        fault = ""
        if len(own) >= limits.MODELS_OF_ACCOUNT or len(held) >= limits.MODELS:
            fault = f"{len(own)} models of this account and {len(held)} in all are kept"
        elif sum(each.manifest.size for each in own) + size > self._most // ACCOUNT_SHARE:
            fault = f"an account has {format_bytes(self._most // ACCOUNT_SHARE)}, and this one is {format_bytes(size)}"
        elif sum(each.manifest.size for each in held) + size > self._most:
            fault = f"all models together have {format_bytes(self._most)}"
        elif free < size + coming + FREE_BYTES:
            fault = f"its disk has {format_bytes(free)} left" + (
                f", and {format_bytes(coming)} of other models are on their way" if coming else ""
            )
        if fault:
            raise PolicyError(
                "FF-APP-648",
                "this network's seat has no room for the model",
                cause=fault,
                hint="ask the operator to raise model_bytes under [network] in seat/validator.toml",
            )

    def _drop(self, record: PublishedModelRecord) -> None:
        """Deletes what was begun, unless another model has the same bytes."""
        others = (*self._kept.values(), *(each for _, each in self._pending.values()))
        if all(each.record.manifest.id != record.manifest.id for each in others):
            self._disk.delete(record.manifest.id)


def unproven(cause: str) -> PolicyError:
    """FF-APP-644: the ledger does not prove what is to be published."""
    return PolicyError(
        "FF-APP-644",
        "this model cannot be published",
        cause=cause,
        hint="farflung verify-run RUN says whether a run is finished, settled and checked",
    )


def unpublished(name: str) -> PolicyError:
    """FF-APP-654: there is nothing to take back."""
    return PolicyError(
        "FF-APP-654",
        f"this account has published no model as {name[:80]}",
        cause="none of the network's seats that answer keeps one of that name for it",
        hint="farflung account shows your account; on another network: --on NETWORK",
    )


def no_models() -> PolicyError:
    """FF-APP-649: no model is kept here."""
    return PolicyError(
        "FF-APP-649",
        "this network keeps no models",
        cause="none of its seats that answer has room for them (model_bytes = 0)",
        hint='ask its operator, or start from a run of your own: model.start = "RUN"',
    )
