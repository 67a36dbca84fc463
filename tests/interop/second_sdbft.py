"""SDBFT a second time: a replica written from docs/protocol/sdbft.md alone, as plainly as the page reads.

No code of src/farflung is used: msgpack, hash, quorums, links, views and the log are its own; Ed25519 and BLAKE3 are
the libraries' primitives. What a transaction does is not its business: a `Law` executes blocks. Nothing is fast here:
every event looks at everything again, until nothing changes (`settle`). Its log is what it sent and saw, as messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from second_codec import pack
from second_messages import (
    CHAIN,
    EPOCH,
    FINALIZE,
    HEIGHT,
    MESSAGE_BYTES,
    NOTARIZE,
    NULLIFY,
    PARENT,
    TIME,
    ZERO,
    Header,
    Law,
    checked,
    h,
    is_quorum,
    is_signed,
    name_of,
    read,
    shown,
)
from second_views import Views

CLOCK_MS = 5000


class Second(Views):
    """One validator. `out` collects (key of the peer, or None for all, message); `disk` holds its synced records."""

    def __init__(self, seed: bytes, law: Law, root: Header, state: Any, disk: list[bytes], now: int) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(seed)
        self.me = self.key.public_key().public_bytes_raw()
        self.law, self.disk, self.now, self.clock = law, disk, now, now
        self.chain: list[tuple[Header, list[Any], list[Any]]] = []  # the final blocks
        self.pool: list[Any] = []
        self.out: list[tuple[bytes | None, bytes]] = []
        self.asked: dict[bytes, tuple[Any, int]] = {}
        self.answered: dict[bytes, list[int]] = {}
        self.told: dict[bytes, int] = {}
        self.runs: dict[bytes, list[Any]] = {}  # of blocks that wait for a FINALIZE certificate, by sender
        self.waking = True
        self.begin(root, state)
        for record in list(disk):
            self.take(b"", record)
            self.settle()
        self.waking = False
        self.out.clear()
        self.seen = {}
        self.began = self.view
        self.send(None, self.status_message())
        self.settle()

    # What comes in.

    def message(self, peer: bytes, data: bytes, now: int, clock: int) -> None:
        self.now, self.clock = now, clock
        is_valid, is_hint = self.take(peer, data)
        self.settle()
        if (is_valid and self.lacks()) or is_hint:
            self.ask(peer)

    def take(self, peer: bytes, data: bytes) -> tuple[bool, bool]:
        """Reads one message: whether it was valid, and whether it hints that its sender is ahead."""
        found = read(data)
        if found is None:
            return False, False
        tag, fields = found
        return getattr(self, "take_" + tag)(peer, *fields)  # type: ignore[no-any-return]

    def take_ballot(self, peer: bytes, signed: Any) -> tuple[bool, bool]:
        vote, seat, signature = signed
        chain, epoch, view, kind, block = vote
        if chain != self.root[CHAIN] or epoch > self.reign.epoch:
            return False, chain == self.root[CHAIN]
        if epoch < self.reign.epoch:
            self.tell(peer)
            return False, False
        if seat >= len(self.members) or not is_signed(self.members[seat], vote, signature):
            return False, False
        if kind > FINALIZE or view < 1 or (kind == NULLIFY) != (block == ZERO):
            return False, False
        is_early = kind == NULLIFY and self.is_gone(view % len(self.members), view)
        if view <= self.view + 64:
            self.seen[seat] = max(view, self.seen.get(seat, 0))
        if view < self.view - 1 or (view <= self.final and kind != FINALIZE):
            self.tell(peer)
        if self.final < view <= self.view + 64:
            if self.waking and seat == self.seat:
                self.mine[view, kind] = signed
            self.votes.setdefault((view, kind, block), {})[seat] = signature
        return True, view > self.view + 1 and not is_early

    def take_quorum(self, peer: bytes, vote: Any, seats: bytes, signatures: list[bytes]) -> tuple[bool, bool]:
        chain, epoch, view, kind, block = vote
        if chain != self.root[CHAIN] or epoch != self.reign.epoch or kind > FINALIZE or view < 1:
            return False, chain == self.root[CHAIN] and epoch > self.reign.epoch
        if view <= self.final or (view, kind) in self.quorums:
            return False, False
        found = checked(vote, seats, signatures, self.members)
        if found:
            self.hold(view, kind, block, found)
            for seat in found:
                self.seen[seat] = max(view, self.seen.get(seat, 0))
        return bool(found), bool(found) and view > self.view

    def take_proposal(self, peer: bytes, header: Header, txs: list[Any], signed: Any) -> tuple[bool, bool]:
        vote, seat, _ = signed
        view, block = vote[2], name_of(header)
        if vote[1] == self.reign.epoch and seat != view % len(self.members):
            return False, False
        if vote[3] != NOTARIZE or vote[4] != block or (header[CHAIN], header[EPOCH]) != (vote[0], vote[1]):
            return False, False
        is_valid, is_hint = self.take_ballot(peer, signed)
        if is_valid and self.final < view <= self.view + 8:
            held = self.proposals.setdefault(view, [])
            if all(name_of(other) != block for other, _, _ in held) and (not held or self.chosen(view) == block):
                held.append((header, txs, signed))
                self.known.setdefault(block, (header, txs))
                self.log(["proposal", header, txs, signed])
        return is_valid, is_hint

    def take_status(
        self, peer: bytes, epoch: int, view: int, height: int, since: int, wants: bytes
    ) -> tuple[bool, bool]:
        if peer not in self.law.validators(self.states[self.head]):
            return False, False
        recent = [at for at in self.answered.get(peer, []) if at > self.now - self.reign.delta]
        if len(recent) < 8:
            self.answered[peer] = [*recent, self.now]
            self.answer(peer, epoch, height, since, wants)
        mine = (self.known[self.head][0][HEIGHT], self.reign.epoch, self.view)
        return True, height > mine[0] or (height == mine[0] and (epoch, view) > mine[1:])

    def take_blocks(self, peer: bytes, blocks: list[Any]) -> tuple[bool, bool]:
        blocks = [block for block in blocks if block[0][HEIGHT] > self.known[self.head][0][HEIGHT]]
        if blocks and blocks[0][0][PARENT] != self.head:
            blocks = self.runs.get(peer, []) + blocks
        self.runs.pop(peer, None)
        if not blocks or blocks[-1][2][0] == FINALIZE:
            return bool(blocks) and self.adopt(blocks), False
        if self.is_chain(blocks):
            self.runs[peer] = blocks
        return True, False

    def take_pending(self, peer: bytes, txs: list[Any]) -> tuple[bool, bool]:
        if peer in self.law.validators(self.states[self.head]):
            self.submit(txs)
        return True, False

    def submit(self, txs: list[Any]) -> None:
        state = self.states[self.head]
        self.pool += [tx for tx in txs if tx not in self.pool and self.law.waits(state, tx)]

    def connected(self, peer: bytes) -> None:
        self.send(peer, self.status_message())

    # What goes out.

    def send(self, peer: bytes | None, message: Sequence[Any]) -> None:
        if not self.waking:
            self.out.append((peer, pack(message)))

    def log(self, record: Sequence[Any]) -> None:
        if not self.waking:
            self.disk.append(pack(record))

    def tell(self, peer: bytes) -> None:
        """One's own Status, to a sender that is behind."""
        if self.now - self.told.get(peer, -self.reign.delta) >= self.reign.delta:
            self.told[peer] = self.now
            self.send(peer, self.status_message())

    def ask(self, peer: bytes) -> None:
        status = self.status_message()
        before, at = self.asked.get(peer, (None, 0))
        if peer and (before != status or self.now - at >= 3 * self.reign.delta):
            self.asked[peer] = status, self.now
            self.send(peer, status)

    def answer(self, peer: bytes, epoch: int, height: int, since: int, wants: bytes) -> None:
        if height < self.known[self.head][0][HEIGHT]:
            self.send_blocks(peer, height)
        elif height == self.known[self.head][0][HEIGHT] and epoch == self.reign.epoch:
            for (view, kind), (block, signatures) in sorted(self.quorums.items()):
                if since <= view < since + 256:
                    self.send(peer, self.quorum_message(view, kind, block, signatures))
            shown = [
                proposal
                for view, held in sorted(self.proposals.items())
                for proposal in held
                if name_of(proposal[0]) == wants or (view >= since and self.chosen(view) == name_of(proposal[0]))
            ]
            shown.sort(key=lambda proposal: name_of(proposal[0]) != wants)
            for proposal in shown[:9]:
                self.send(peer, ["proposal", *proposal])
            for (view, kind), signed in sorted(self.mine.items()):
                if view >= since and (view, kind) not in self.quorums:
                    self.send(peer, ["ballot", signed])

    def send_blocks(self, peer: bytes, height: int) -> None:
        """As many as one message takes, or as many messages as it takes to the first FINALIZE certificate."""
        parts: list[list[Any]] = [[]]
        ends = 0
        for block in self.chain[height:]:
            is_full = len(pack(["blocks", [*parts[-1], block]])) > MESSAGE_BYTES or len(parts[-1]) == 16
            if block[0][EPOCH] != self.chain[height][0][EPOCH] or (ends and (is_full or len(parts) > 1)):
                break
            if is_full:
                parts.append([])
            parts[-1].append(block)
            ends = len(parts[-1]) if block[2][0] == FINALIZE else ends
        for part in [*parts[:-1], parts[-1][:ends]]:
            self.send(peer, ["blocks", part])

    # What it does.

    def settle(self) -> None:
        while self.advance():
            pass
        work = self.has_work()
        self.work_since = (self.now if self.work_since is None else self.work_since) if work else None

    def advance(self) -> bool:
        """One step of the rules; whether anything changed."""
        for (view, kind, block), signatures in list(self.votes.items()):
            if (view, kind) not in self.quorums and is_quorum(len(signatures), len(self.members)):
                self.hold(view, kind, block, dict(signatures))
                return True
        ahead = [v for v, kind in self.quorums if kind != NULLIFY and v >= self.view]
        if self.view <= self.final:
            ahead.append(self.final)
        if not ahead and (self.view, NULLIFY) in self.quorums:
            ahead = [self.view]
        if ahead:
            self.enter(max(ahead) + 1)
            return True
        return self.finish() or (not self.waking and (self.notarize() or self.finalize() or self.propose()))

    def hold(self, view: int, kind: int, block: bytes, signatures: dict[int, bytes]) -> None:
        self.quorums[view, kind] = block, signatures
        message = self.quorum_message(view, kind, block, signatures)
        self.log(message)
        self.send(None, message)

    def enter(self, view: int) -> None:
        self.view, self.entered, self.fired = view, self.now, 0
        if self.waking or self.seat is None:
            return
        n = len(self.members)
        if self.is_gone(view % n, view):
            self.vote(NULLIFY, view, ZERO)
        for ahead in range(view + 1, view + min(n, 64)):
            if not self.is_gone(ahead % n, ahead):
                break
            self.vote(NULLIFY, ahead, ZERO)

    def vote(self, kind: int, view: int, block: bytes, proposal: Sequence[Any] | None = None) -> bool:
        """Signs, logs and sends, if the rules let it."""
        barred = {NOTARIZE: (NOTARIZE, NULLIFY), NULLIFY: (NULLIFY, FINALIZE), FINALIZE: (NULLIFY, FINALIZE)}
        if self.seat is None or view <= self.final or any((view, other) in self.mine for other in barred[kind]):
            return False
        vote = [self.root[CHAIN], self.reign.epoch, view, kind, block]
        signed = [vote, self.seat, self.key.sign(h("farflung/vote/1", pack(vote)))]
        self.mine[view, kind] = signed
        self.votes.setdefault((view, kind, block), {})[self.seat] = signed[2]
        if proposal is not None:
            self.proposals[view] = [(proposal[0], proposal[1], signed)]
            self.log(["proposal", *proposal, signed])
        self.log(["ballot", signed])
        self.send(None, ["ballot", signed] if proposal is None else ["proposal", *proposal, signed])
        return True

    def notarize(self) -> bool:
        for header, _, _ in self.proposals.get(self.view, [])[:1]:
            block = name_of(header)
            if (self.view, NOTARIZE) in self.mine or (self.view, NULLIFY) in self.mine:
                return False
            is_new = self.chosen(self.view) != block and block not in self.states
            if not self.is_linked(block, self.view) or self.execute(block, judged=is_new) is None:
                return False
            if is_new and abs(header[TIME] - self.clock) > CLOCK_MS:
                return False
            return self.vote(NOTARIZE, self.view, block)
        return False

    def finalize(self) -> bool:
        held = [(view, block) for (view, kind), (block, _) in self.quorums.items() if kind == NOTARIZE]
        return any(self.vote(FINALIZE, view, block) for view, block in held)

    def propose(self) -> bool:
        if self.seat is None or self.view % len(self.members) != self.seat:
            return False
        if (self.view, NOTARIZE) in self.mine or (self.view, NULLIFY) in self.mine:
            return False
        if not self.has_work() and self.now < self.entered + self.reign.idle:
            return False
        for before in range(self.view - 1, self.final - 1, -1):
            x = self.chosen(before)
            if x is not None and self.execute(x) is not None:
                header, txs = self.known[x]
                if not self.closes(x):
                    header, txs = self.law.fill(self.states[x], header, self.me, self.clock, self.pool)
                self.known.setdefault(name_of(header), (header, txs))
                return self.vote(NOTARIZE, self.view, name_of(header), (header, txs))
            if (before, NULLIFY) not in self.quorums:
                return False
        return False

    def finish(self) -> bool:
        """Rule 6: the way from the last final block to the newest one with a FINALIZE quorum becomes final."""
        views = [v for v, kind in self.quorums if kind == FINALIZE and v > self.final]
        if not views:
            return False
        way: list[Any] = []
        block, view = self.quorums[max(views), FINALIZE][0], max(views)
        while block != self.head:
            proofs = [
                (v, kind, found)
                for (v, kind), (name, found) in self.quorums.items()
                if name == block and kind != NULLIFY and v <= view
            ]
            if block not in self.known or not proofs:
                return False
            view, kind, found = max(proofs)
            way.insert(0, (*self.known[block], [kind, view, *shown(found, len(self.members))]))
            block = self.known[block][0][PARENT]
        return self.adopt(way)

    def adopt(self, blocks: list[Any]) -> bool:
        """Final blocks, the last with a FINALIZE certificate, become the chain's end."""
        state = self.states[self.head]
        if not self.is_chain(blocks) or blocks[-1][2][0] != FINALIZE:
            return False
        for header, txs, _ in blocks:
            state = self.law.play(state, header, txs, False)
            if state is None:
                return False
        self.log(["blocks", blocks])
        self.chain += blocks
        self.runs.clear()
        header, txs, certificate = blocks[-1]
        if self.law.reign(state).epoch != self.reign.epoch:
            self.begin(header, state)
        else:
            self.head, self.final = name_of(header), certificate[1]
            self.known[self.head], self.states[self.head] = (header, txs), state
            self.prune()
        self.pool = [tx for tx in self.pool if self.law.waits(state, tx)]
        return True

    # Time.

    def wakes(self) -> int:
        """When `tick` has something to do."""
        is_waiting = self.seat == self.view % len(self.members) and (self.view, NOTARIZE) not in self.mine
        idle = self.entered + self.reign.idle
        return min(self.timer(), idle) if is_waiting and self.now < idle else self.timer()

    def tick(self, now: int, clock: int) -> None:
        self.now, self.clock = now, clock
        if now >= self.timer():
            self.fired += 1
            if len(self.members) > 1:
                self.vote(NULLIFY, self.view, ZERO)
            for (view, _), signed in self.mine.items():
                if view == self.view:
                    self.send(None, ["ballot", signed])
            entered = [key for key in self.quorums if key[0] == self.view - 1]
            for view, kind in entered:
                self.send(None, self.quorum_message(view, kind, *self.quorums[view, kind]))
            if self.seat is None or not entered:
                self.send(None, self.status_message())
        self.settle()
