"""What tests give to roles: a node's configuration, and a channel on which nobody listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.ledger.block import Genesis
from farflung.peers.node.config import NodeConfig
from farflung.peers.process.channel import LogChannel
from farflung.peers.process.config import GenesisFile, HexId, LedgerConfig

VALIDATOR = local_key(9, "validator")
GENESIS = Genesis("roles", 0, (), (VALIDATOR.public,))


class QuietChannel(LogChannel):
    """Nobody reads what is reported, and nobody orders anything."""

    def report(self, kind: str, **facts: Any) -> None: ...


def node_config(key: SigningKey, folder: Path, genesis: Genesis = GENESIS, **changes: Any) -> NodeConfig:
    """A node's that asks for 10 pico-credits a token, of a ledger that is not there."""
    ledger = LedgerConfig(HexId(VALIDATOR.public), "127.0.0.1", 1)
    values = {"name": "p", "unit_price": 10, "stake": 1000, "flops": 1} | changes
    return NodeConfig(key=key, genesis=GenesisFile(encode(genesis)), folder=folder, ledger=ledger, **values)
