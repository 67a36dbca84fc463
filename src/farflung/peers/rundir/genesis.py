"""Derives a local run's keys, accounts and ledger genesis from its job, so that anybody can compute them again.

Keys come from the run's seed: two runs with one seed give the same bits. Such keys are unsafe anywhere else.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.core.crypto import NS_LOCAL_KEY, SigningKey, digest, local_key
from farflung.core.ids import Hash, PeerId
from farflung.core.money import CREDIT, MICRO, Credits, parse_credits, times
from farflung.job.spec import JobSpec
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.params import HOUR_MS, LedgerParams
from farflung.net.certificates import Credential, certify
from farflung.peers.process.channel import relay_names
from farflung.peers.rundir.folder import MICRO_FORMAT, RunFolder
from farflung.peers.rundir.network_record import read_genesis

MOST_RELAYS: Final = 4
RELAY_FUNDS: Final = 10_000 * CREDIT  # what a local run's requester has for relays: no part of a job's budget
FEE = parse_credits("0.00001")  # a transaction
# A provider stakes the price of this many rounds: more than it could save by cheating in one.
STAKE_ROUNDS = 20
# Who contests puts up the price of this many: about what executing a segment canonically costs both sides.
BOND_ROUNDS = 10
# A side of a dispute has so many blocks for a move: who computes it on a busy computer is in time, who is silent loses.
DISPUTE_BLOCKS = 240
POCKET = CREDIT  # credits for fees, beyond budget or stake
DELTA_MS = 500  # by which validators of one computer hear each other, however busy it is


def stake_of(spec: JobSpec) -> Credits:
    """What each provider and verifier puts at stake at most; nothing where the job names who checks."""
    if spec.audit.verifiers:
        return Credits(0)
    return times(parse_credits(spec.unit_price), STAKE_ROUNDS * spec.round_tokens)


def cheater_of(spec: JobSpec) -> int:
    """Which provider cheats, when one does: drawn, and told to nobody but its own process."""
    drawn = digest(NS_LOCAL_KEY, spec.seed.to_bytes(8, "little"), b"cheater")
    return int.from_bytes(drawn, "little") % spec.network.providers


def bond_of(spec: JobSpec) -> Credits:
    """What who contests puts up at least, where there are disputes."""
    return times(parse_credits(spec.unit_price), BOND_ROUNDS * spec.round_tokens)


def genesis_of(spec: JobSpec, validators: int = 1, *, disputes: bool = False) -> Genesis:
    """The genesis of a job's local ledger: it follows from the job, the number of validators, and whether whoever is
    accused may contest.
    """
    keys, pocket, stake = NetworkKeys(spec, MOST_RELAYS, validators), POCKET, stake_of(spec)
    if disputes:
        pocket = Credits(pocket + bond_of(spec))
    accounts = [(keys.requester.public, parse_credits(spec.budget) + pocket + RELAY_FUNDS)]
    accounts += [(key.public, stake + pocket) for key in (*keys.providers, *keys.verifiers)]
    accounts += [(key.public, pocket) for key in keys.relays]
    law = LedgerParams(fee_min=FEE)
    if validators > 1:  # without work there are no blocks: what the run proves at its end is of one of them
        law = replace(law, delta_ms=DELTA_MS, idle_ms=HOUR_MS)
    if disputes:
        law = replace(law, dispute_ms=DISPUTE_BLOCKS * LOGICAL_MS, bond_min=bond_of(spec))
    seats = tuple(key.public for key in keys.validators)
    return Genesis(f"local-{spec.seed}", 0, tuple(accounts), seats, law)


def machine_of(account: SigningKey) -> Credential:
    """The node key of a local account, of epoch 1 and without an end: what its process proves on the network."""
    node = SigningKey(account.secret(NS_LOCAL_KEY, b"node"))
    return Credential(node, certify(account, node.public, 1))


def chain_of(run: RunFolder, spec: JobSpec) -> Hash:
    """The chain of a run's ledger."""
    return genesis_in(run, spec).chain


def genesis_in(run: RunFolder, spec: JobSpec) -> Genesis:
    """The genesis of a run's ledger: kept in its folder where it is on a network, else computed from the job."""
    if run.network_file.exists():
        return read_genesis(run)
    identity = run.read_identity()
    made = genesis_of(spec, identity.validators, disputes=identity.disputes)
    return in_micro(made) if identity.format <= MICRO_FORMAT else made


def in_micro(genesis: Genesis) -> Genesis:
    """The genesis of a ledger from before the pico-credit, with all of its money in micro-credits."""
    accounts = tuple((owner, amount // MICRO) for owner, amount in genesis.accounts)
    law = genesis.params
    return replace(
        genesis, accounts=accounts, params=replace(law, fee_min=law.fee_min // MICRO, bond_min=law.bond_min // MICRO)
    )


class NetworkKeys:
    """Everybody's account; a machine proves the node key that belongs to it (`machine_of`)."""

    def __init__(self, spec: JobSpec, relays: int = 1, validators: int = 1) -> None:
        seed = spec.seed
        self.requester = local_key(seed, "requester")
        self.validators = [local_key(seed, "validator", i) for i in range(validators)]
        self.relays = [local_key(seed, "relay", i) for i in range(relays)]
        self.verifiers = [local_key(seed, "verifier", i) for i in range(spec.verifiers)]
        self.providers = [local_key(seed, "provider", i) for i in range(spec.network.providers)]

    @property
    def parties(self) -> dict[str, PeerId]:
        """All that a job may pay or refund, by name."""
        found = {"requester": self.requester.public}
        found |= {f"provider-{i}": key.public for i, key in enumerate(self.providers)}
        found |= {name: key.public for name, key in zip(relay_names(len(self.relays)), self.relays, strict=True)}
        return found | {f"verifier-{i}": key.public for i, key in enumerate(self.verifiers)}

    @property
    def nodes(self) -> list[PeerId]:
        """All that put a stake on the ledger."""
        return [key.public for key in (*self.providers, *self.verifiers)]

    @property
    def guests(self) -> list[PeerId]:
        """All that the relays serve."""
        return [self.requester.public, *self.nodes]
