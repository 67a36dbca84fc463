"""The law a second time, as plainly as possible: dictionaries, deep copies, no trees, no caches, no shared code.

Written from docs/protocol/ledger.md, not from the rules; only formats and signature checks are shared.
"""

from __future__ import annotations

import copy
from typing import Any

from naive_base import TOP, No, need, numbers_in, of_small_order
from naive_canaries import NaiveCanaries
from naive_exclusions import NaiveExclusions
from naive_pay import LIVE, NaivePay
from naive_seats import NaiveSeats

from farflung.core.codec import encode
from farflung.core.crypto import digest, is_signed
from farflung.ledger import transactions as ops
from farflung.ledger.block import Genesis

BOOKS = ("money", "nodes", "jobs", "keys", "channels", "disputes", "out", "seats", "moved", "amended", "coming")


class Naive(NaiveSeats, NaiveExclusions, NaivePay, NaiveCanaries):
    def __init__(self, genesis: Genesis) -> None:
        self.chain = genesis.chain
        self.now = genesis.time
        self.money = dict(genesis.accounts)
        self.nonce: dict[bytes, int] = {}
        self.nodes: dict[bytes, dict[str, Any]] = {}
        self.jobs: dict[bytes, dict[str, Any]] = {}
        self.keys: dict[bytes, dict[str, Any]] = {}
        self.channels: dict[tuple[bytes, bytes], dict[str, Any]] = {}
        self.disputes: dict[tuple[bytes, bytes], dict[str, Any]] = {}
        self.out: dict[bytes, dict[str, Any]] = {}
        self.found(genesis)

    def block(self, time: int, txs: list[ops.SignedTx], proposer: bytes) -> list[str]:
        self.now, self.height = time, self.height + 1
        self.payee = self.seats[proposer]["owner"]
        for name, job in self.jobs.items():
            if job["state"] in LIVE and time >= job["deadline"]:
                self.end(name, "expired")
        self.disputes_past_their_deadline()
        self.appeals_past_their_deadline()
        for name, node in self.nodes.items():
            if node["active"] and time >= node["expires"] and not self.locked(name):
                self.leave(name)
        for names, channel in self.channels.items():
            if channel["open"] and time >= channel["expires"] + 600_000:
                self.shut(names[0], channel)
        self.seats_past_their_time()
        said = [self.one(signed) for signed in txs]
        self.boundary()
        return said

    def one(self, signed: ops.SignedTx) -> str:
        t = signed.tx
        if not all(0 <= n <= TOP for n in numbers_in(t)):
            return "rejected"
        if t.chain != self.chain or not is_signed(t.sender, signed.signature, "farflung/tx/1", encode(t)):
            return "rejected"
        if t.nonce != self.nonce.get(t.sender, 0) or (t.expires and self.now >= t.expires):
            return "rejected"
        if not self.p.fee_min <= t.fee <= self.money.get(t.sender, 0):
            return "rejected"
        self.nonce[t.sender] = t.nonce + 1
        self.pay(t.sender, -t.fee)
        self.pay(self.payee, t.fee)
        self.in_term: set[bytes] = set()  # jobs whose term this transaction names
        kept = copy.deepcopy({name: getattr(self, name) for name in BOOKS})
        try:
            for op in t.ops:
                getattr(self, type(op).__name__)(t.sender, op)
        except No:
            vars(self).update(kept)
            return "failed"
        return "applied"

    def pay(self, who: bytes, amount: int) -> None:
        self.money[who] = self.money.get(who, 0) + amount
        need(self.money[who] >= 0)

    def locked(self, node: bytes) -> list[dict[str, Any]]:
        leases = [job["leases"][node] for job in self.jobs.values() if node in job["leases"]]
        return [lease for lease in leases if lease["locked"]]

    def leave(self, name: bytes) -> None:
        self.nodes[name]["active"] = False
        self.pay(name, self.nodes[name]["free"])
        self.nodes[name]["free"] = 0

    def mine(self, sender: bytes, job: bytes, *states: str) -> dict[str, Any]:
        need(job in self.jobs)
        need(self.jobs[job]["owner"] == sender)
        self.speaks(job)
        need(self.jobs[job]["state"] in states)
        return self.jobs[job]

    def speaks(self, job: bytes) -> None:
        need(digest("farflung/coordinator/1", job) not in self.keys or job in self.in_term)

    def JobCoordinate(self, sender: bytes, op: ops.JobCoordinate) -> None:
        need(op.job in self.jobs and self.jobs[op.job]["owner"] == sender)
        name = digest("farflung/coordinator/1", op.job)
        fresh = {"now": (0, name), "before": (0, name), "times": (0, 0), "void": 0}
        term, mark = self.keys.get(name, fresh)["now"]
        if not (op.term and (op.term, op.mark) == (term, mark)):
            need(op.term == term + 1 < 2**32 and op.mark not in (mark, bytes(32)))
        self.keys.setdefault(name, fresh)["now"] = (op.term, op.mark)
        self.in_term.add(op.job)

    def KeyCertify(self, sender: bytes, op: ops.KeyCertify) -> None:
        said = self.keys.setdefault(sender, {"now": (0, sender), "before": (0, sender), "times": (0, 0), "void": 0})
        need(said["now"][0] < op.epoch < 2**32 and op.epoch >= said["void"])
        need(op.node not in (sender, said["now"][1], bytes(32)) and not of_small_order(op.node))
        need(1 <= op.expires <= 253402300799 >= op.until)
        said.update(now=(op.epoch, op.node), before=said["now"], times=(op.expires, op.until))

    def KeyRevoke(self, sender: bytes, op: ops.KeyRevoke) -> None:
        said = self.keys.setdefault(sender, {"now": (0, sender), "before": (0, sender), "times": (0, 0), "void": 0})
        need(said["void"] <= op.epoch < 2**32 - 1)
        said["void"] = op.epoch + 1

    def shut(self, payer: bytes, channel: dict[str, Any]) -> None:
        self.pay(payer, channel["left"])
        channel.update(left=0, open=False)

    def ChannelOpen(self, sender: bytes, op: ops.ChannelOpen) -> None:
        need(op.amount > 0 and op.relay != sender)
        need(self.now < op.expires <= self.now + self.p.job_ms_max)
        self.pay(sender, -op.amount)
        empty = {"times": 0, "open": False}
        channel = self.channels.setdefault((sender, op.relay), empty)
        if channel["open"]:
            need(op.price == channel["price"] and op.expires >= channel["expires"])
            channel.update(left=channel["left"] + op.amount, put=channel["put"] + op.amount)
        else:
            channel.update(times=channel["times"] + 1, open=True, price=op.price, left=op.amount)
            channel.update(put=op.amount, done={}, next=0)
        channel["expires"] = op.expires

    def ChannelClaim(self, sender: bytes, op: ops.ChannelClaim) -> None:
        channel = self.channels.get((op.payer, sender), {"open": False})
        need(channel["open"] and 1 <= len(op.passages) <= 128)
        need(sum(len(passage.receipts) for passage in op.passages) <= 512)
        for passage in op.passages:
            p = passage.signed.toll
            need(p.serial >= channel["next"])
            need((p.chain, p.payer, p.relay, p.opening) == (self.chain, op.payer, sender, channel["times"]))
            need(2 <= len(p.holders) <= 64 and list(p.holders) == sorted(set(p.holders)))
            need(all(len(holder) == 32 and holder != sender for holder in p.holders))
            need(p.quota <= 2**50 and p.lost <= 2**50)
            need(is_signed(op.payer, passage.signed.signature, "farflung/pass/1", encode(p)))
            said = {}
            for signed in passage.receipts:
                r = signed.receipt
                need(
                    (r.chain, r.payer, r.relay, r.opening, r.serial) == (p.chain, p.payer, sender, p.opening, p.serial)
                )
                need(r.party in p.holders and r.party not in said and max(r.sent, r.received) <= 2**50)
                need(signed.signer in self.voices(r.party))
                need(is_signed(signed.signer, signed.signature, "farflung/receipt/1", encode(r)))
                said[r.party] = (r.sent, r.received)
            bill = p.lost
            for party, (_, received) in said.items():
                bill += min(received, sum(sent for other, (sent, _) in said.items() if other != party))
            channel["done"][p.serial] = min(bill, p.quota)
            channel["next"] = p.serial + 1
        whole = sum(channel["done"].values()) * channel["price"] // 2**30
        paid = channel["put"] - channel["left"]
        due = min(whole - paid, channel["left"])
        need(channel["next"] <= TOP and sum(channel["done"].values()) <= TOP)
        self.pay(sender, due)
        channel["left"] -= due

    def voices(self, account: bytes) -> list[bytes]:
        keys = self.keys.get(account)
        known = [] if keys is None else [keys["now"], keys["before"]]
        return [account, *(key for epoch, key in known if epoch >= keys["void"])]  # type: ignore[index]

    def ChannelClose(self, sender: bytes, op: ops.ChannelClose) -> None:
        channel = self.channels.get((op.payer, sender), {"open": False})
        need(channel["open"])
        self.shut(op.payer, channel)

    def Transfer(self, sender: bytes, op: ops.Transfer) -> None:
        need(op.amount > 0)
        self.pay(sender, -op.amount)
        self.pay(op.to, op.amount)

    def NodeRegister(self, sender: bytes, op: ops.NodeRegister) -> None:
        need(self.now < op.expires <= self.now + self.p.node_ms_max)
        need(not of_small_order(sender))
        node = self.nodes.setdefault(sender, {"free": 0, "burnt": 0})
        held = node["free"] + sum(lease["stake"] for lease in self.locked(sender))
        need(max(op.stake, held) >= self.p.stake_min)
        added = max(0, op.stake - held)
        self.pay(sender, -added)
        node.update(free=node["free"] + added, price=op.unit_price, caps=op.caps, expires=op.expires, active=True)

    def NodeLeave(self, sender: bytes, op: ops.NodeLeave) -> None:
        need(sender in self.nodes and self.nodes[sender]["active"] and not self.locked(sender))
        self.leave(sender)

    def JobCreate(self, sender: bytes, op: ops.JobCreate) -> None:
        need(op.job not in self.jobs and op.escrow > 0 and 1 <= op.rounds <= 2**20)
        need(self.now < op.deadline <= self.now + self.p.job_ms_max)
        self.pay(sender, -op.escrow)
        self.jobs[op.job] = {
            "owner": sender,
            "escrow": op.escrow,
            "burnt": 0,
            "cap": op.unit_price_max,
            "rounds": op.rounds,
            "deadline": op.deadline,
            "state": "created",
            "leases": {},
            "roots": [],
            "draws": [],
            "output": bytes(32),
            "until": 0,
            "paid": 0,
            "law": self.p,
        }

    def JobSchedule(self, sender: bytes, op: ops.JobSchedule) -> None:
        job = self.mine(sender, op.job, "created", "running")
        need(len(op.offers) > 0 and len(job["leases"]) + len(op.offers) <= 1024)
        for signed in op.offers:
            o = signed.offer
            need(o.chain == self.chain and o.job == op.job and o.node not in job["leases"])
            need(is_signed(o.node, signed.signature, "farflung/offer/1", encode(o)))
            need(self.now < o.expires and o.unit_price <= job["cap"] and o.units_max > 0)
            need(o.node in self.nodes and not self.is_out(o.node))
            node = self.nodes[o.node]
            need(node["active"] and self.now < node["expires"] and node["free"] >= o.stake)
            node["free"] -= o.stake
            job["leases"][o.node] = {
                "price": o.unit_price,
                "stake": o.stake,
                "max": o.units_max,
                "units": 0,
                "role": int(o.role),
                "vouched": 0,
                "over": False,
                "locked": True,
                "slashed": False,
                "lost": 0,
            }
        kept = [lease for lease in job["leases"].values() if not lease["over"]]
        need(sum(lease["price"] * lease["max"] for lease in kept) + job["burnt"] <= job["escrow"])
        self.cleared(op)
        job["state"] = "running"

    def cleared(self, op: ops.JobSchedule) -> None:
        """One price for each role: the ask of a node that stands at the end of those that are hired, or behind it."""
        need([int(c.role) for c in op.clearings] == sorted({int(s.offer.role) for s in op.offers}))

        def place(peer: bytes) -> tuple[int, bytes]:
            node = self.nodes.get(peer)
            need(node is not None and node["active"] and self.now < node["expires"] and not self.is_out(peer))
            return node["price"], digest("farflung/turn/1", op.job, peer)

        for clearing in op.clearings:
            hired = [s.offer for s in op.offers if s.offer.role == clearing.role]
            last = place(clearing.setter)
            need(all(o.unit_price == last[0] and place(o.node) <= last for o in hired))

    def Progress(self, sender: bytes, op: ops.Progress) -> None:
        job = self.mine(sender, op.job, "running")
        need(op.round == len(job["roots"]) < job["rounds"])
        need(len(dict(op.units)) == len(op.units))
        for name, units in op.units:
            need(name in job["leases"] and not job["leases"][name]["over"])
            first = self.notice(op.job, name)
            need(first is None or op.round < first)
            job["leases"][name]["units"] += units
            need(job["leases"][name]["units"] <= job["leases"][name]["max"])
        job["roots"].append((op.root, op.contributions, self.hour()))

    def JobDraw(self, sender: bytes, op: ops.JobDraw) -> None:
        job = self.mine(sender, op.job, "running")
        need(len(job["draws"]) == op.round and op.round < job["rounds"])
        job["draws"].append(op.commitments)
        job.setdefault("since", self.hour())

    def epochs_of(self, job: dict[str, Any]) -> list[Any]:
        """What is recorded; before that, when and of what the first round was drawn."""
        return job["roots"] or [(bytes(32), draw, job["since"]) for draw in job["draws"][:1]]

    def JobFinish(self, sender: bytes, op: ops.JobFinish) -> None:
        job = self.mine(sender, op.job, "running")
        need(job["roots"] and job["roots"][-1][0] == op.root)
        job.update(state="output", output=op.output, until=self.close_in_time(job))

    def JobSettle(self, sender: bytes, op: ops.JobSettle) -> None:
        need(self.now >= self.mine(sender, op.job, "output")["until"])
        self.end(op.job, "settled")

    def notice(self, job: bytes, node: bytes) -> int | None:
        """The first round without a node that gave notice."""
        said = self.keys.get(digest("farflung/leaving/1", job, node))
        return None if said is None else said["now"][0]

    def hour(self) -> int:
        past = self.now % 3_600_000
        return self.now + (3_600_000 - past if past else 0)

    def JobLeave(self, sender: bytes, op: ops.JobLeave) -> None:
        need(op.job in self.jobs)
        job = self.jobs[op.job]
        need(job["state"] in ("running", "output", "stopped"))
        lease = job["leases"].get(sender)
        need(lease is not None and not lease["over"])
        first, window = self.notice(op.job, sender), job["law"].window_ms
        if job["state"] != "running":
            need(self.now >= job["until"])
        elif first is not None and len(job["roots"]) >= first:
            need(self.now >= job["roots"][first - 1][2] + window)
        elif job["draws"] or job["roots"]:
            last = job["roots"][-1][2] if job["roots"] else job["since"]
            if self.now < last + max(3_600_000, window):
                need(first is None)
                name = digest("farflung/leaving/1", op.job, sender)
                bound = min(max(len(job["draws"]), len(job["roots"])) + 2, job["rounds"])
                self.keys[name] = {"now": (bound, sender), "before": (0, name), "times": (0, 0), "void": 0}
                return
        due = max(lease["units"], lease["vouched"]) * lease["price"]
        self.pay(sender, due)
        job["escrow"] -= due
        job["paid"] += due
        lease["over"] = True
        self.unlock(op.job, sender)

    def JobCancel(self, sender: bytes, op: ops.JobCancel) -> None:
        job = self.mine(sender, op.job, "created", "running", "stopped")
        if job["state"] == "running" and job["law"].window_ms > 0:
            job.update(state="stopped", until=self.close_in_time(job))
        else:
            need(self.now >= job["until"])
            self.end(op.job, "cancelled")
