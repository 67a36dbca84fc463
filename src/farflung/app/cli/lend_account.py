"""Puts an account's credits behind the nodes that it lends: its first grant, each node's stake, and money for fees."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from farflung.app.cli.lend_screen import StepLines
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError
from farflung.core.ids import short
from farflung.core.money import CREDIT, format_credits
from farflung.ledger.transactions import Transfer
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of, validators_in
from farflung.peers.network.account import slot_key
from farflung.peers.network.grant import request_grant
from farflung.peers.network.invitation import is_invitation, token_of
from farflung.peers.network.join import KnownNetwork
from farflung.peers.node import home as homes

RESERVE: Final = CREDIT // 10  # pico-credits of a node that are not put at stake: its fees are paid from them


class NodeMoney(NamedTuple):
    """What one node is to have: at stake, for fees, and how much of it the account sends now. Pico-credits."""

    stake: int
    fees: int
    sent: int


class Holdings(NamedTuple):
    """What there is: the account's balance, the node's, what it has at stake, and what its last start put there."""

    account: int
    node: int
    bonded: int
    kept: int


def money_for(held: Holdings, least: int, fee: int, nodes: int = 1) -> NodeMoney | None:
    """A node's money, where the account starts so many `nodes`; None: there is too little for the `least` stake.

    A stake that the ledger holds stays as it is. A node whose stake came back gets the same again, if there is as
    much; new ones get equal shares of the account's credits, and one share stays for a node that is started later.
    """
    total = held.account + held.node
    share = total // (nodes + 1)
    if held.bonded:
        reserve = min(RESERVE, share // 10)
        return NodeMoney(max(least, held.bonded), reserve, _sendable(reserve - held.node, held.account, fee))
    spendable = total - (fee if held.account else 0)
    reserve = min(RESERVE, (held.kept or share) // 10, spendable // 10)
    stake = min(max(least, held.kept or share - reserve), spendable - reserve)
    if stake < least or stake >= spendable:
        return None
    return NodeMoney(stake, reserve, _sendable(stake + reserve - held.node, held.account, fee))


def _sendable(missing: int, balance: int, fee: int) -> int:
    """What the account can send of what is missing."""
    return max(0, min(missing, balance - fee))


class AccountFunds:
    """One person's account on a network, while nodes start from it."""

    def __init__(self, known: KnownNetwork, account: SigningKey, named: str, lines: StepLines) -> None:
        """`named`: what the owner called the network: an invitation's token may give credits."""
        self._known, self._account, self._named, self._lines = known, account, named, lines
        self._endpoint = Endpoint(account, serve_nothing, ByteCounter())
        reaches = reaches_of(validators_in(known.ledger), self._endpoint)
        self._ledger = LedgerClient(reaches, account, known.genesis)
        self._is_told = False

    async def put_behind(self, home: Path, role: str, slot: int, nodes: int) -> tuple[SigningKey, NodeMoney]:
        """A home's key, and its money, sent there. `nodes`: that start now, this one included.

        Raises PolicyError FF-APP-583: too little.
        """
        derived = slot_key(self._account, self._known.chain, role, slot)
        key = homes.own_key(home, derived)
        if key.public != derived.public:
            file = homes.key_file(home)
            text = f"this node has a key of its own: keep a copy of {file}, too, or remove it after farflung lend leave"
            self._lines.say("note", text, text=text)
        params, row = (await self._ledger.committee()).params, await self._ledger.node(key.public)
        bonded = row.stake if row is not None else 0
        held = await self._held(key, bonded, homes.stake_in(home))
        granted = 0
        if not bonded and held.account + held.node < max(held.kept, params.stake_min) + RESERVE:
            granted = await self._granted()
            held = await self._held(key, bonded, held.kept)
        money = money_for(held, params.stake_min, params.fee_min, nodes)
        self._say(held.account, granted)
        if money is None:
            raise PolicyError(
                "FF-APP-583",
                "the account has too little to register",
                cause=f"it has {format_credits(held.account)} credits; a node puts {format_credits(params.stake_min)}"
                " and fees at stake",
                hint=f"ask the operator for credits to {self._account.public.hex()}",
            )
        if money.sent:
            await self._ledger.submit(Transfer(key.public, money.sent))
        return key, money

    async def _held(self, key: SigningKey, bonded: int, kept: int) -> Holdings:
        own, node = await self._ledger.account(self._account.public), await self._ledger.account(key.public)
        return Holdings(own.balance, node.balance, bonded, kept)

    def _say(self, balance: int, granted: int) -> None:
        """Once: the account before its nodes take their shares."""
        if not self._is_told:
            self._is_told = True
            key = self._account.public
            text = f"{short(key)}, {format_credits(balance)} credits" + (" (granted now)" if granted else "")
            self._lines.say("account", text, key=key.hex(), balance=balance, granted=granted)

    async def _granted(self) -> int:
        """Pico-credits that the network's faucet gave now; 0 with a line that says why it gave none."""
        if not self._known.card.faucet.grant:
            return 0
        token = token_of(self._named) if is_invitation(self._named) else b""
        asked = request_grant(self._known, self._account, token)
        try:
            reply, _ = await self._lines.wait("account", "asking for first credits", asked)
        except PolicyError as error:
            self._lines.say("note", f"{error.code} {error.message}", code=error.code)
            return 0
        await self._ledger.refresh()
        return reply.amount if reply.is_new else 0

    async def close(self) -> None:
        """Asks and sends nothing more."""
        await self._endpoint.close()
