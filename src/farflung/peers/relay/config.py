"""Defines a relay's configuration: one file beside its key, or what a supervisor says.

key = "relay.key"            # of an account, or a node key that an account certified
account = "account.key"      # of a node key: to rotate it in time, and to claim; left out: the key signs itself
folder = "relay.key.till"    # the receipts of what it may claim
host = "127.0.0.1"           # an address that peers reach; nothing else is listened on
port = 4510
uplink_mbit = 20.0           # the line's upload, of which 95 % is used; left out: no bound. Linux only
circuit_mbit = 5.0           # that one circuit forwards each way at most; 0: no bound
month_gb = 100.0             # volume of a month; 0: no bound; left out: as network.toml says
price = "0.002"              # credits a GiB; left out: it carries for nothing
allow = ["KEY"]              # whom it serves; left out: everybody
[ledger]                     # whose withdrawn node keys it serves no more, and that pays
peer = "KEY"
host = "127.0.0.1"
port = 4520
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final

import msgspec

from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.socket_options import CAN_PACE
from farflung.net.max_min_fair import kept_rate
from farflung.peers.keys.files import another_account
from farflung.peers.process.channel import RELAY
from farflung.peers.process.config import HexId, KeyFile, LedgerConfig, Port, RelayPrice, RoleConfig

PORT: Final = 4510
MBIT: Final = 125_000  # bytes a second
Rate = Annotated[float, msgspec.Meta(ge=0.0, le=10_000.0)]


class RelayConfig(RoleConfig, frozen=True):
    """What a relay is told. `patience`: seconds for which a ledger that is away is waited for at the start.

    `settles`: it claims all that is signed when it ends; else the receipts wait for its next start.
    """

    FILES: ClassVar[Mapping[str, str]] = {"key": "relay.key", "folder": "relay.key.till"}

    key: KeyFile
    account: SigningKey | None = None
    folder: Path = Path()
    name: str = RELAY
    host: str = LOOPBACK
    port: Port = PORT
    uplink_mbit: Rate | None = None
    circuit_mbit: Rate = 0.0
    month_gb: Annotated[float, msgspec.Meta(ge=0.0, le=1_000_000.0)] | None = None
    price: RelayPrice = 0
    allow: tuple[HexId, ...] | None = None
    ledger: LedgerConfig | None = None
    patience: float = 0.0
    settles: bool = True

    @property
    def limits(self) -> RelayLimits:
        """Its rates. Raises UsageError FF-APP-142 where no socket can be held to one."""
        return RelayLimits(sent_at_most(self.uplink_mbit), int(self.circuit_mbit * MBIT))

    @property
    def signer(self) -> SigningKey | None:
        """The account's key, where the relay has it.

        Raises UsageError FF-APP-262 (another account's), FF-APP-264 (it is missed).
        """
        own = self.key.credential
        account = self.account or (own.node if own.certificate is None else None)
        if account is not None and account.public != own.account:
            raise another_account(self.key.path or self.folder, f"the node key speaks for {own.account.hex()}")
        if account is None and self.price:
            raise UsageError(
                "FF-APP-264",
                "a relay that is paid needs its account's key",
                cause="a node key signs no transaction",
                hint="name the account's file with --account",
            )
        return account


def sent_at_most(uplink: float | None) -> int | None:
    """Bytes a second for a line of `uplink` Mbit/s. Raises UsageError FF-APP-142 where no socket can be held to it."""
    if uplink is None:
        return None
    if not CAN_PACE:
        raise UsageError(
            "FF-APP-142",
            "--uplink cannot be kept on this system",
            cause="only Linux lets a program say how fast its connections may send",
            hint="run the relay on Linux, or leave --uplink out and let your router share the line",
        )
    return kept_rate(uplink)
