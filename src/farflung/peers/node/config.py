"""Defines a lending node's configuration: one file beside its keys, or what a supervisor says.

key = "account.key"          # of the account that stakes and is paid
owner = "KEY"                # the account to which what it earns is sent on; left out: the node keeps it
owner_signature = "HEX"      # the owner's, of the node's key: both are one owner for requesters; left out: not said
fees = "0.1"                 # credits of what it earned that stay with the node, for fees
node = "node.key"            # what the machine proves in its stead (farflung key new); left out: the account's key
genesis = "genesis.bin"      # what the ledger begins with
folder = "data"              # stored objects, sealed files, vouchers, files of disputes
port = 0                     # 0: any free one
unit_price = "0.00001"       # credits that it asks for a token; a text, or an integer of pico-credits
outcome_price = "0.000012"   # credits that it asks for a token of work that is not proven; left out: as unit_price
module_price = "0.000015"    # the same for models of foreign Python
stake = "4.9"                # credits
host = "203.0.113.5"         # a public address of this computer; left out: it is reached at relays
allow_modules = false        # whether models of foreign Python may run in the sandbox
drawn_only = false           # whether jobs are refused whose requester named the verifiers
cores = 1                    # that its worker uses; 0: all of this computer's
memory_bytes = 0             # that a job's worker may take; 0: what there is
data_cache = 1073741824      # bytes of a job's data set that stay on disk, where it does not come whole
disk_floor = 2147483648      # bytes that must be free before a lease is taken; below a quarter, one ends
claims = "../jobs"           # where all nodes of one owner say which job each is in; left out: there is one node
[ledger]                     # one of its validators; [[ledger.others]] are more
peer = "KEY"
host = "127.0.0.1"
port = 4520
[[relays]]                   # where it is reached; none: it listens itself, on this computer
peer = "KEY"
host = "198.51.100.7"
port = 4510
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId, Signature
from farflung.host.io import machine_probe
from farflung.host.worker_limits import GIB
from farflung.job.cheat_names import HONEST
from farflung.market.provider_offer import Capabilities
from farflung.net.certificates import Credential
from farflung.peers.node.job_fit import ClassPrices
from farflung.peers.node.registration import REGISTERED_MS
from farflung.peers.process.config import (
    Count,
    GenesisFile,
    HexId,
    KeyFile,
    LedgerConfig,
    ListenerConfig,
    Money,
    Port,
    RoleConfig,
    refuse_config,
)
from farflung.peers.protocol.directory import NodeOwner
from farflung.plan.device_choice import CPU


class NodeConfig(RoleConfig, frozen=True):
    """What a provider or a verifier is told.

    `registers`: at its start; else when its supervisor says so. `flops`: as measured before; 0: measured at the start.
    `device`: on which its worker computes (plan.device_choice). `cheat`, `contests`: how the node of a demonstration
    deviates.
    """

    FILES: ClassVar[Mapping[str, str]] = {"key": "account.key", "genesis": "genesis.bin", "folder": "data"}

    key: SigningKey
    genesis: GenesisFile
    folder: Path
    ledger: LedgerConfig
    unit_price: Money
    stake: Money
    node: KeyFile | None = None
    name: str = "node"
    port: Port = 0
    relays: tuple[ListenerConfig, ...] = ()
    registers: bool = True
    flops: Count = 0
    cheat: str = HONEST
    contests: bool = False
    host: str = ""
    cores: Count = 1
    memory_bytes: Count = 0
    allow_modules: bool = False
    drawn_only: bool = False
    disk_floor: Count = 2 * GIB
    data_cache: Count = GIB
    claims: Path | None = None
    owner: HexId | None = None
    owner_signature: str = ""
    fees: Money = 0
    outcome_price: Money = 0
    module_price: Money = 0
    device: str = CPU

    @property
    def jobs_taken(self) -> tuple[bool, bool, ClassPrices]:
        """Which jobs it takes: with foreign Python, with drawn verifiers alone, and at which prices by class."""
        return self.allow_modules, self.drawn_only, self.prices

    @property
    def prices(self) -> ClassPrices:
        """What it asks more for jobs of a class."""
        return ClassPrices(self.outcome_price, self.module_price)

    @property
    def declared(self) -> NodeOwner | None:
        """What its advertisement says of its owner. Raises UsageError FF-APP-300: that is no signature."""
        if self.owner is None or not self.owner_signature:
            return None
        try:
            return NodeOwner(PeerId(bytes(self.owner)), Signature(bytes.fromhex(self.owner_signature)))
        except ValueError:
            refuse_config("owner_signature", "it is not hex digits")

    @property
    def credential(self) -> Credential:
        """What the machine proves."""
        return Credential(self.key) if self.node is None else self.node.credential

    @property
    def threads(self) -> int:
        """How many cores its worker uses."""
        return self.cores or machine_probe.cores()

    def facts(self, found: Capabilities) -> Capabilities:
        """What it offers of this machine."""
        return replace(found, memory_bytes=min(found.memory_bytes, self.memory_bytes or found.memory_bytes))

    @property
    def expires(self) -> int:
        """Until when it registers, in the ledger's time: where that counts blocks, it began at 0."""
        return REGISTERED_MS + (int(time.time() * 1000) if self.genesis.genesis.time else 0)
