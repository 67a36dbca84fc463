"""Keeps a paid relay's passes and their last receipts in a folder, so that a relay that was killed can still claim.

One file a pass, replaced as a whole: there from before the first byte is carried under the pass, written anew a moment
after a receipt came, gone when the pass is settled. A receipt that was not written is no loss: the next one says more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core import limits, tolls
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.io import durable
from farflung.core.tolls import Pass, SignedPass, SignedReceipt
from farflung.net import passes

_ENDING: Final = ".pass"
_LABEL: Final = "till"


class Kept(NamedTuple):
    """One pass, and what its parties signed at last."""

    signed: SignedPass
    receipts: tuple[SignedReceipt, ...]


class Till:
    """The folder of one relay. At most limits.PASSES files of limits.TILL_BYTES."""

    def __init__(self, folder: Path) -> None:
        """Made if it is missing, for its owner alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._waiting: dict[Path, Kept] = {}  # to be written
        self._turn = asyncio.Lock()

    def load(self, relay: PeerId, chain: Hash) -> Iterator[Kept]:
        """What a relay of this key has kept; files that say something else are passed over."""
        for path in self._folder.glob("*.tmp"):
            path.unlink(missing_ok=True)
        for path in sorted(self._folder.glob("*" + _ENDING))[: limits.PASSES]:
            with contextlib.suppress(OSError, ProtocolError):
                if path.stat().st_size > limits.TILL_BYTES:
                    continue
                kept = Kept(
                    *decode(
                        path.read_bytes(), tuple[SignedPass, tuple[SignedReceipt, ...]], limits.TILL_BYTES
                    )
                )
                toll = passes.judge(kept.signed, relay, ())
                if isinstance(toll, Pass) and toll.chain == chain and _are_sound(toll, kept.receipts):
                    yield kept

    async def open(self, signed: SignedPass) -> None:
        """A pass is known from now on, whatever happens. Raises RunError FF-CORE-050."""
        self.keep(signed, ())
        await self.write()

    def keep(self, signed: SignedPass, receipts: tuple[SignedReceipt, ...]) -> None:
        """To be written at the next `write`."""
        self._waiting[self._path(signed.toll)] = Kept(signed, receipts)

    async def write(self) -> None:
        """Returns when all that is to be kept lies on the disk. Raises RunError FF-CORE-050; what is left stays due."""
        async with self._turn:
            for path, kept in list(self._waiting.items()):
                data = encode(tuple(kept))
                await asyncio.to_thread(durable.write_atomic, path, data, _LABEL, private=True)
                if self._waiting.get(path) is kept:
                    del self._waiting[path]

    async def drop(self, toll: Pass) -> None:
        """The pass is settled."""
        path = self._path(toll)
        async with self._turn:
            self._waiting.pop(path, None)
            # It is claimed; what stays is passed over at the next claim.
            with contextlib.suppress(FarflungError):
                await asyncio.to_thread(durable.remove, path, _LABEL)

    def _path(self, toll: Pass) -> Path:
        return self._folder / f"{toll.payer.hex()}-{toll.opening}-{toll.serial}{_ENDING}"


def _are_sound(toll: Pass, receipts: tuple[SignedReceipt, ...]) -> bool:
    """Whose node key counts is asked when they are claimed."""
    return len({each.receipt.party for each in receipts}) == len(receipts) and all(
        tolls.is_of(each.receipt, toll) and tolls.is_receipt_signed(each, each.signer) for each in receipts
    )
