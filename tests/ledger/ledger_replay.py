"""Run by another interpreter: replays the frozen histories from their blocks, and prints where they end."""

import sys

from ledger_committee import SEATS, Reign
from ledger_history import audited_batches, disputed_batches, governed_batches, history, perjured_batches
from ledger_world import REQUESTER, SLOW_PARAMS

from farflung.core.codec import encode
from farflung.ledger import transactions
from farflung.ledger.block import read_block
from farflung.ledger.chain import Chain


def grown() -> Chain:
    """A chain under four committees."""
    committee = Reign()
    for size in (4, 7, 2):
        committee.grow(size)
        committee.do(REQUESTER, transactions.Transfer(SEATS[0].public, 1))
    return committee.chain


def ends() -> list[str]:
    """Block id and state root at the end of each history, read again from bytes."""
    made = (
        history(),
        history(audited_batches()),
        history(perjured_batches()),
        history(disputed_batches(), SLOW_PARAMS),
        history(governed_batches()),
        grown(),
    )
    found = []
    for chain in made:
        reader = Chain(chain.genesis, audits=True)
        reader.adopt_many([read_block(encode(block)) for block in chain.blocks])
        found.append(f"{reader.head.id.hex()} {reader.state.root.hex()}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(ends()) + "\n")
