"""Answers for a seat what concerns its network: the network card, and grants where it holds the faucet's key."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash, PeerId
from farflung.core.release import JOB_FORMATS, VERSION
from farflung.ledger.block import Genesis
from farflung.ledger.table_rows import JobRow
from farflung.peers.network.card import (
    FORMAT,
    FaucetTerms,
    NetworkCard,
    NetworkConfig,
    NetworkRelay,
    SignedNetworkCard,
    sign_card,
)
from farflung.peers.network.faucet import Faucet, GrantLedger
from farflung.peers.network.grant import GrantReply, GrantRequest, no_faucet
from farflung.peers.network.invitation import Seat, is_name, is_place
from farflung.peers.network.model_registry import ModelRegistry, no_models

Places = Mapping[PeerId, tuple[str, int]]


class NetworkService:
    """One seat's answers. `places` gives where seats are reached, this one first."""

    def __init__(
        self,
        key: SigningKey,
        genesis: Genesis,
        config: NetworkConfig,
        places: Callable[[], Places],
        folder: Path,
        clock: Callable[[], float] = time.time,
        jobs: Callable[[Hash], JobRow | None] = lambda _: None,
    ) -> None:
        """`folder`: where the faucet keeps its log, and published models lie. `clock` gives seconds since 1970; `jobs`
        finds a job's row on the ledger.
        """
        said = config.faucet
        self._faucet = None if said is None or not said.grant else Faucet(said, folder / "faucet.log", clock)
        self._key, self._genesis, self._config, self._places, self._clock = key, genesis, config, places, clock
        self._signed: SignedNetworkCard | None = None
        self._jobs, self._folder = jobs, folder
        self._models: ModelRegistry | None = None

    @property
    def name(self) -> str:
        """The network's name: the operator's word for it, else the ledger's where that can be one."""
        said = self._config.name or self._genesis.name
        return said if is_name(said) else "network"

    def card(self) -> SignedNetworkCard:
        """The card as it is now; signed once a second at most, however often it is asked for."""
        now = int(self._clock())
        if self._signed is None or self._signed.card.issued != now:
            self._signed = sign_card(self._key, self._card(now))
        return self._signed

    async def grant(self, address: str, request: GrantRequest, ledger: GrantLedger) -> GrantReply:
        """A new account's first credits. Raises PolicyError FF-APP-542 (no faucet here), and as the faucet does."""
        if self._faucet is None:
            raise no_faucet()
        return await self._faucet.grant(address, request, ledger)

    @property
    def models(self) -> ModelRegistry:
        """The models that are published here; the folder is made when it is asked for first.

        Raises PolicyError FF-APP-649 where none is kept.
        """
        most = self._config.model_bytes
        if not most:
            raise no_models()
        if self._models is None:
            self._models = ModelRegistry(self._folder / "models", self._genesis.chain, self._jobs, most)
        return self._models

    def close(self) -> None:
        """Ends; what is stored stays."""
        if self._faucet is not None:
            self._faucet.close()

    def _card(self, now: int) -> NetworkCard:
        seats = [Seat(key, host, port) for key, (host, port) in self._places().items() if is_place(host, port)]
        relays = [NetworkRelay(PeerId(bytes(r.peer)), r.host, r.port, r.price) for r in self._config.relays]
        return NetworkCard(
            FORMAT,
            self._config.least,
            VERSION,
            JOB_FORMATS,
            self.name,
            self._genesis.chain,
            self._key.public,
            now,
            tuple(seats[: limits.NETWORK_SEATS]),
            tuple(relays),
            FaucetTerms() if self._config.faucet is None else self._config.faucet.terms,
            self._config.foreign_modules,
            "".join(each if each.isprintable() else " " for each in self._config.message),
        )
