"""Stores a paid relay's passes and their last receipts in a folder, so that it can still claim after a crash.

One file a pass, replaced as a whole: there from before the first byte is carried under the pass, written anew a moment
after a receipt came, gone when the pass is settled. A receipt that was not written is no loss: the next one says more.
Beside each pass stands how much was carried under it, and in a file of its own what a payer that settled has left
unsigned: a relay that is started anew gives nobody a new window for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits, relay_passes
from farflung.core.codec import Wire
from farflung.core.errors import FarflungError, ProtocolError
from farflung.core.file_header import HEAD_BYTES, FileFormat, file_of, value_of
from farflung.core.ids import Hash, PeerId
from farflung.core.io import durable_files
from farflung.core.relay_passes import RelayPass, SignedRelayPass, SignedRelayReceipt
from farflung.net import relay_pass_checks

_ENDING: Final = ".pass"
_OWED: Final = ".owed"
_OWED_BYTES: Final = 16
_LABEL: Final = "till"
FORM: Final = FileFormat("relay-pass", remedy="delete the file: what it would claim is lost")
_DEBT: Final = FileFormat("relay-debt", remedy="delete the file: what it says is forgiven")


class StoredPass(Wire, frozen=True):
    """One pass, what its parties signed at last, and the bytes that were carried under it."""

    signed: SignedRelayPass
    receipts: tuple[SignedRelayReceipt, ...]
    carried: int = 0


class ReceiptStore:
    """The folder of one relay. At most limits.PASSES files of limits.TILL_BYTES."""

    def __init__(self, folder: Path) -> None:
        """Made if it is missing, for its owner alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._waiting: dict[Path, bytes] = {}  # to be written
        self._turn = asyncio.Lock()

    def load(self, relay: PeerId, chain: Hash) -> Iterator[StoredPass]:
        """What a relay of this key has kept; files that say something else are passed over.

        Raises VersionError FF-CORE-095: what another farflung kept is money, too.
        """
        for path in self._folder.glob("*.tmp"):
            path.unlink(missing_ok=True)
        for path in sorted(self._folder.glob("*" + _ENDING))[: limits.PASSES]:
            with contextlib.suppress(OSError, ProtocolError):
                if path.stat().st_size > limits.TILL_BYTES + HEAD_BYTES:
                    continue
                kept = value_of(FORM, path.read_bytes(), StoredPass, limits.TILL_BYTES)
                toll = relay_pass_checks.judge(kept.signed, relay, ())
                if isinstance(toll, RelayPass) and toll.chain == chain and _are_sound(toll, kept.receipts):
                    yield kept

    async def open(self, signed: SignedRelayPass) -> None:
        """A pass is known from now on, whatever happens. Raises RunError FF-CORE-050."""
        self.keep(signed, (), 0)
        await self.write()

    def keep(self, signed: SignedRelayPass, receipts: tuple[SignedRelayReceipt, ...], carried: int) -> None:
        """To be written at the next `write`."""
        self._waiting[self._path(signed.toll)] = file_of(FORM, StoredPass(signed, receipts, carried))

    def owe(self, payer: PeerId, size: int) -> None:
        """What this payer has left unsigned under passes that are settled; to be written at the next `write`."""
        path = self._folder / (payer.hex() + _OWED)
        if size or path.exists():
            self._waiting[path] = file_of(_DEBT, size)

    def debts(self) -> Iterator[tuple[PeerId, int]]:
        """What payers owe, as it was kept; files that say something else are passed over. Raises as `load`."""
        for path in sorted(self._folder.glob("*" + _OWED))[: limits.PASSES]:
            with contextlib.suppress(OSError, ProtocolError, ValueError):
                if path.stat().st_size <= _OWED_BYTES + HEAD_BYTES:
                    owed = value_of(_DEBT, path.read_bytes(), int, _OWED_BYTES)
                    yield (PeerId(bytes.fromhex(path.stem)), max(0, owed))

    async def write(self) -> None:
        """Returns when all that is to be kept lies on the disk. Raises RunError FF-CORE-050; what is left stays due."""
        async with self._turn:
            for path, data in list(self._waiting.items()):
                await asyncio.to_thread(durable_files.write_atomic, path, data, _LABEL, private=True)
                if self._waiting.get(path) is data:
                    del self._waiting[path]

    async def drop(self, toll: RelayPass) -> None:
        """The pass is settled."""
        path = self._path(toll)
        async with self._turn:
            self._waiting.pop(path, None)
            # It is claimed; what stays is passed over at the next claim.
            with contextlib.suppress(FarflungError):
                await asyncio.to_thread(durable_files.remove, path, _LABEL)

    def _path(self, toll: RelayPass) -> Path:
        return self._folder / f"{toll.payer.hex()}-{toll.opening}-{toll.serial}{_ENDING}"


def _are_sound(toll: RelayPass, receipts: tuple[SignedRelayReceipt, ...]) -> bool:
    """Whose node key counts is asked when they are claimed."""
    return len({each.receipt.party for each in receipts}) == len(receipts) and all(
        relay_passes.is_of(each.receipt, toll) and relay_passes.is_receipt_signed(each, each.signer)
        for each in receipts
    )
