"""A network of one seat on whose ledger a job of OWNER was settled, its terms and its last public state."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from core_asks import scheduled

from farflung.core.crypto import SigningKey, local_key
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import AncestorRun, JobSpec, JobTerms
from farflung.ledger.block import Genesis
from farflung.ledger.params import DAY_MS, LedgerParams
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import (
    JobCreate,
    JobFinish,
    JobSettle,
    LeaseOffer,
    NodeRegister,
    Op,
    Progress,
    make_tx,
    sign_offer,
    sign_tx,
)
from farflung.ledger.tx_results import AppliedResult
from farflung.net.counters import ByteCounter
from farflung.peers.network.card import NetworkConfig
from farflung.peers.network.model_transfer import ModelSource
from farflung.peers.process.config import HexId, LedgerConfig
from farflung.peers.validator.service import ValidatorConfig, ValidatorService
from farflung.train.public_state import PublicState

SEAT, OWNER, RIVAL, NODE = (local_key(71, name) for name in ("seat", "owner", "rival", "node"))
GENESIS = Genesis(
    "commons",
    int(time.time() * 1000) - 1000,
    tuple((key.public, 10**9) for key in (OWNER, RIVAL, NODE)),
    (SEAT.public,),
    LedgerParams(fee_min=1),
)
LAYOUT = TensorLayout.of({"b": (300, 500), "a": (400,)})
BEFORE = AncestorRun(GENESIS.chain, ZERO_HASH, ZERO_HASH)


def terms_of(owner: SigningKey = OWNER, spec: JobSpec = JobSpec()) -> JobTerms:  # noqa: B008
    return JobTerms(spec, ZERO_HASH, ZERO_HASH, LAYOUT, owner.public, ZERO_HASH, lineage=(BEFORE,))


def state_of(seed: int = 3) -> PublicState:
    weights = np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)
    return PublicState(1, weights)


@dataclass
class ModelWorld:
    service: ValidatorService
    port: int

    def source(self, account: SigningKey = OWNER) -> ModelSource:
        return ModelSource(GENESIS, LedgerConfig(HexId(SEAT.public), "127.0.0.1", self.port), account)

    async def submit(self, key: SigningKey, op: Op) -> None:
        row = self.service.chain.state.find(AccountRow, key.public)
        assert row is not None
        result = await self.service.requests.submit(
            sign_tx(key, make_tx(GENESIS.chain, key.public, row.nonce, op, fee=1))
        )
        assert isinstance(result, AppliedResult), result

    async def job(self, terms: JobTerms, state: PublicState, owner: SigningKey = OWNER, settled: bool = True) -> None:
        """Puts a job of one round on the ledger."""
        end = self.service.chain.state.time + 30 * DAY_MS
        if self.service.chain.state.tables["nodes"].place(NODE.public) is None:
            await self.submit(NODE, NodeRegister(ZERO_HASH, 1, 0, end))
        root = state.root(terms.layout)
        await self.submit(owner, JobCreate(terms.id, 1000, 1, 1, end))
        offer = sign_offer(NODE, LeaseOffer(GENESIS.chain, terms.id, NODE.public, 1, 0, 100, end))
        await self.submit(owner, scheduled(terms.id, [offer]))
        units: tuple[tuple[PeerId, int], ...] = ((NODE.public, 10),)
        await self.submit(owner, Progress(terms.id, 0, root, ZERO_HASH, units))
        if settled:
            await self.submit(owner, JobFinish(terms.id, root, ZERO_HASH))
            await self.submit(owner, JobSettle(terms.id))


@contextlib.asynccontextmanager
async def model_world(folder: Path, **facts: Any) -> AsyncIterator[ModelWorld]:
    os.makedirs(folder, exist_ok=True)
    config = ValidatorConfig(SEAT, GENESIS, folder, network=NetworkConfig(**facts))
    service = ValidatorService(config, ByteCounter(), lambda: None)
    try:
        _, port = await service.open({})
        yield ModelWorld(service, port)
    finally:
        await service.close()
