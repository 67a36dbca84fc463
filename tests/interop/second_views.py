"""The second SDBFT's knowledge of its epoch: views, links, what is executed, what is lacking."""

from __future__ import annotations

from typing import Any

from second_messages import (
    CHAIN,
    EPOCH,
    FINALIZE,
    HEIGHT,
    NOTARIZE,
    NULLIFY,
    PARENT,
    TIME,
    ZERO,
    Header,
    Law,
    checked,
    name_of,
    shown,
)


class Views:
    """One epoch at a time; `Second` adds the rules."""

    law: Law
    me: bytes
    now: int
    pool: list[Any]
    work_since: int | None
    entered: int
    fired: int

    def begin(self, root: Header, state: Any) -> None:
        """An epoch, on its root."""
        self.reign = self.law.reign(state)
        self.members = list(self.reign.members)
        self.seat = self.members.index(self.me) if self.me in self.members else None
        self.root, self.head = root, name_of(root)
        self.states: dict[bytes, Any] = {self.head: state}
        self.known: dict[bytes, tuple[Header, list[Any]]] = {self.head: (root, [])}
        self.proposals: dict[int, list[tuple[Header, list[Any], Any]]] = {}
        self.votes: dict[tuple[int, int, bytes], dict[int, bytes]] = {}
        self.quorums: dict[tuple[int, int], tuple[bytes, dict[int, bytes]]] = {}
        self.mine: dict[tuple[int, int], Any] = {}
        self.seen: dict[int, int] = {}
        self.final, self.view = 0, 1
        self.began = 1
        self.work_since: int | None = None
        self.entered, self.fired = self.now, 0

    def quorum_message(self, view: int, kind: int, block: bytes, signatures: dict[int, bytes]) -> list[Any]:
        vote = [self.root[CHAIN], self.reign.epoch, view, kind, block]
        return ["quorum", vote, *shown(signatures, len(self.members))]

    def status_message(self) -> list[Any]:
        since, wants = self.lacks() or (self.view, ZERO)
        return ["status", self.reign.epoch, self.view, self.known[self.head][0][HEIGHT], since, wants]

    def chosen(self, view: int) -> bytes | None:
        """The block that is notarized in a view; the epoch's root, or the last final block, for the view of that."""
        if view == self.final:
            return self.head
        for kind in (FINALIZE, NOTARIZE):
            if (view, kind) in self.quorums:
                return self.quorums[view, kind][0]
        return None

    def closes(self, block: bytes) -> bool:
        return self.law.reign(self.states[block]).epoch != self.reign.epoch

    def is_gone(self, seat: int, view: int) -> bool:
        """Whether a seat is inactive."""
        return seat != self.seat and view - max(self.seen.get(seat, 0), self.began) > 2 * len(self.members)

    def is_linked(self, block: bytes, view: int) -> bool:
        parent = self.known[block][0][PARENT]
        for before in range(view - 1, self.final - 1, -1):
            x = self.chosen(before)
            if x is not None and self.execute(x) is not None and x == (block if self.closes(x) else parent):
                return True
            if (before, NULLIFY) not in self.quorums:
                break
        return False

    def execute(self, block: bytes, judged: bool = False) -> Any:
        """The state after a block, if it and its way from the last final one are known and valid."""
        if block not in self.states and block in self.known:
            header, txs = self.known[block]
            before = self.execute(header[PARENT])
            parent = self.known.get(header[PARENT])
            if before is None or parent is None or not self.follows(header, parent[0]):
                return None
            after = self.law.play(before, header, txs, judged)
            if after is None:
                return None
            self.states[block] = after
        return self.states.get(block)

    def follows(self, header: Header, parent: Header) -> bool:
        on_place = header[CHAIN] == parent[CHAIN] and header[HEIGHT] == parent[HEIGHT] + 1
        return on_place and parent[TIME] < header[TIME] <= parent[TIME] + self.reign.step

    def is_chain(self, blocks: list[Any]) -> bool:
        """Whether these follow the last final block, one by one, each with a certificate."""
        parent = self.known[self.head][0]
        for header, _, (kind, view, seats, signatures) in blocks:
            vote = [self.root[CHAIN], self.reign.epoch, view, kind, name_of(header)]
            if header[EPOCH] != self.reign.epoch or not self.follows(header, parent) or kind == NULLIFY:
                return False
            if header[PARENT] != name_of(parent) or not checked(vote, seats, signatures, self.members):
                return False
            parent = header
        return True

    def lacks(self) -> tuple[int, bytes] | None:
        """The first view of which something is missing, and the block that is."""
        missing, wants = [], ZERO
        for view in range(self.final + 1, self.view):
            chosen = self.chosen(view)
            if chosen is not None and chosen not in self.known:
                missing.append(view)
                wants = wants if wants != ZERO else chosen
            elif chosen is None and (view, NULLIFY) not in self.quorums:
                missing.append(view)
        for header, _, _ in self.proposals.get(self.view, []):
            if not self.is_linked(name_of(header), self.view):
                if header[PARENT] not in self.known:
                    wants = header[PARENT]
                holes = [v for v in range(self.final + 1, self.view) if (v, NULLIFY) not in self.quorums]
                missing += holes[:1] or [self.view]
        return (min(missing), wants) if missing else None

    def has_work(self) -> bool:
        if self.pool:
            return True
        for view, kind in self.quorums:
            block = self.quorums[view, kind][0]
            is_open = kind != NULLIFY and view > self.final and block in self.known
            if is_open and (self.known[block][1] or (block in self.states and self.closes(block))):
                return True
        return False

    def timer(self) -> int:
        """When it fires next."""
        unfinished = max(0, self.view - self.final - 2)
        f = (len(self.members) - 1) // 3
        span = 3 * self.reign.delta * 2 ** min(10, unfinished // (f + 1))
        start = self.entered + self.reign.idle if self.work_since is None else max(self.entered, self.work_since)
        return start + span * (self.fired + 1)

    def prune(self) -> None:
        self.quorums = {key: held for key, held in self.quorums.items() if key[0] > self.final}
        self.votes = {key: held for key, held in self.votes.items() if key[0] > self.final}
        self.mine = {key: held for key, held in self.mine.items() if key[0] > self.final}
        self.proposals = {view: held for view, held in self.proposals.items() if view > self.final}
