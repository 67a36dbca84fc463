"""Kills a validator at the first, the second, the third ... of all its writes, and looks at what its next lives find.

Run with LD_PRELOAD=kill_at_write.so as `ledger_crash_points.py FOLDER BLOCKS`. Each case has its own folder and three
lives, each a process: one killed at write N, one killed early again, one that comes to the end. A life votes for a
block, has it final, and says so through a pipe. Whatever was said must be so afterwards, and no two votes may differ.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "support"))

from ledger_history import signed
from ledger_world import NODES, PARAMS, VALIDATOR, genesis

from farflung.core.codec import encode
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS, Block, read_block
from farflung.ledger.chain import Chain
from farflung.ledger.io.file_audit import audit
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.votelog import open_votes

Tell = Callable[[str, int, bytes], None]


def proposed(chain: Chain, life: int) -> Block:
    """What this life would vote for; another life would propose another time."""
    height = chain.head.height
    payment = transactions.Transfer(NODES[(height + 1) % 3].public, 1 + height)
    made, _ = chain.propose([signed(chain, NODES[height % 3], payment)], chain.head.time + LOGICAL_MS + life)
    return made


def live(folder: Path, blocks: int, life: int, tell: Tell) -> Chain:
    """One life of a validator, up to so many blocks."""
    with closing(LedgerStore.open(folder / "chain.db", genesis(PARAMS))) as store:
        chain = store.load(VALIDATOR)
        with closing(open_votes(store, VALIDATOR.public)) as votes:
            voted = {block.header.height: block for block in map(read_block, votes.records)}
            while chain.head.height < blocks:
                block = voted.get(chain.head.height + 1)
                if block is None:
                    block = proposed(chain, life)
                    votes.append([encode(block)])
                tell("vote", block.header.height, block.header.id)
                store.adopt(chain, (block,))
                tell("final", block.header.height, block.header.id)
                votes.begin([])
        audit(store, chain)
    return chain


def killed(folder: Path, blocks: int, life: int, at: int, said: dict[tuple[str, int], set[bytes]]) -> bool:
    """A life in a process of its own, which is killed at its write `at` (0: never). What it said is added to `said`."""
    hear, speak = os.pipe()
    child = os.fork()
    if not child:
        code = 3
        try:
            os.close(hear)
            ctypes.CDLL(None).kill_at(ctypes.c_long(at))
            live(folder, blocks, life, lambda *words: _say(speak, *words))
            code = 0
        finally:
            os._exit(code)
    os.close(speak)
    with os.fdopen(hear, "rb") as pipe:
        for line in pipe.read().splitlines():
            word, height, name = line.decode().split()
            said.setdefault((word, int(height)), set()).add(bytes.fromhex(name))
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"life {life} killed at {at} failed")
    return os.WIFSIGNALED(status)


def _say(pipe: int, word: str, height: int, name: bytes) -> None:
    os.write(pipe, f"{word} {height} {name.hex()}\n".encode())


def check(folder: Path, blocks: int, said: dict[tuple[str, int], set[bytes]], at: int) -> None:
    """The last life came to the end; nobody was told anything else."""
    store = LedgerStore.open(folder / "chain.db", genesis(PARAMS))
    chain = store.load(VALIDATOR)
    replayed = Chain(genesis(PARAMS), audits=True)
    for block in chain.blocks:
        replayed.adopt(block)
    assert chain.head.height == replayed.head.height == blocks
    assert chain.state.root == replayed.state.root
    for block in chain.blocks:
        name, height = block.header.id, block.header.height
        assert said.get(("final", height), {name}) == {name}, f"killed at {at}: another block was final at {height}"
        assert said.get(("vote", height), {name}) == {name}, f"killed at {at}: two votes at {height}"
    assert ("vote", blocks) in said
    store.close()


def one_block(before: Path, after: Path, height: int) -> int:
    """Kills at each write between the start of a validator that holds `before` and the end of the next block."""
    at = 0
    while True:
        at += 1
        said = dict[tuple[str, int], set[bytes]]()
        shutil.copytree(before, after)
        if not killed(after, height, 1, at, said):
            return at - 1
        killed(after, height, 2, at * 7919 % 40 + 1, said)
        killed(after, height, 3, 0, said)
        check(after, height, said, at)
        shutil.rmtree(after)


def main(folder: Path, blocks: int) -> int:
    """Returns how many points there were; each block begins from what the one before it left."""
    (folder / "0").mkdir()
    return sum(one_block(folder / str(height - 1), folder / str(height), height) for height in range(1, blocks + 1))


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), int(sys.argv[2])))
