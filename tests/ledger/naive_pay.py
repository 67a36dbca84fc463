"""The second half of the naive ledger: tallies, the window, slashing, disputes, as docs/protocol/ledger.md has them."""

from __future__ import annotations

from typing import Any

from naive_base import need

from farflung.core import merkle
from farflung.core.canon import program as programs
from farflung.core.codec import encode
from farflung.core.crypto import digest, is_signed
from farflung.ledger import transactions as ops
from farflung.ledger.block import Genesis
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.earnings_tally import JobAttest, OutputAttestation, PartySignature, SettleMany

LIVE = ("created", "running", "output", "stopped")
ENDING = ("output", "stopped")


class NaivePay:
    """What becomes of leases; a lease is `over` when it ended, and `locked` while its stake is behind it."""

    g: Genesis
    chain: bytes
    now: int
    nodes: dict[bytes, dict[str, Any]]
    jobs: dict[bytes, dict[str, Any]]
    disputes: dict[tuple[bytes, bytes], dict[str, Any]]

    def speaks(self, job: bytes) -> None:
        raise NotImplementedError

    def pay(self, who: bytes, amount: int) -> None:
        raise NotImplementedError

    def put_out(self, name: bytes, node: bytes, evidence: bytes, *, is_lie: bool, final: bool) -> None:
        raise NotImplementedError

    # Ends

    def end(self, name: bytes, state: str) -> None:
        job = self.jobs[name]
        for node, lease in job["leases"].items():
            if lease["over"]:
                continue
            due = max(lease["units"], lease["vouched"]) * lease["price"]
            self.pay(node, due)
            job["escrow"] -= due
            job["paid"] += due
            lease["over"] = True
            self.unlock(name, node)
        self.pay(job["owner"], job["escrow"] - job["burnt"])
        job["escrow"], job["state"] = job["burnt"], state

    def unlock(self, job: bytes, node: bytes) -> None:
        """Frees the stake of a lease that is over, if no dispute waits for it."""
        lease = self.jobs[job]["leases"][node]
        if lease["over"] and lease["locked"] and not self.accusing(job, node):
            lease["locked"] = False
            self.nodes[node]["free"] += lease["stake"]

    def accusing(self, job: bytes, node: bytes) -> int:
        return sum(
            dispute["state"] in ("open", "answered") and where == job and node in dispute["accusers"]
            for (where, _), dispute in self.disputes.items()
        )

    def auditors(self, job: dict[str, Any]) -> set[bytes]:
        return {name for name, lease in job["leases"].items() if lease["role"] == 1 and not lease["over"]}

    # Tallies

    def quorum_marked(self, job: dict[str, Any], marks: tuple[PartySignature, ...], what: str, body: bytes) -> bool:
        auditors = self.auditors(job)
        names = [mark.signer for mark in marks]
        return (
            len(set(names)) == len(names) <= 16
            and len(names) >= max(1, min(2, len(auditors)))
            and set(names) <= auditors
            and all(is_signed(mark.signer, mark.signature, what, body) for mark in marks)
        )

    def SettleMany(self, sender: bytes, op: SettleMany) -> None:
        t, marks = op.signed.tally, op.signed.marks
        need(t.job in self.jobs and t.chain == self.chain)
        job = self.jobs[t.job]
        need(job["state"] in ("running", *ENDING))
        need(1 <= len(op.vouchers) <= 256)
        body = encode(t)
        by_owner = [mark.signer for mark in marks] == [job["owner"]] and is_signed(
            job["owner"], marks[0].signature, "farflung/tally/1", body
        )
        need(by_owner or self.quorum_marked(job, marks, "farflung/tally/1", body))
        for voucher in op.vouchers:
            node, units = voucher.credit.node, voucher.credit.units
            leaf = encode(voucher.credit)
            need(merkle.holds(t.root, t.count, voucher.index, leaf, voucher.path))
            need(node in job["leases"])
            lease = job["leases"][node]
            need(by_owner or lease["role"] == 0)
            disputed = self.disputes.get((t.job, node), {"state": "none"})["state"] in ("open", "answered")
            need(not lease["over"] or disputed)
            need(units <= lease["max"])
            lease["vouched"] = max(lease["vouched"], units)

    # The window

    def close_in_time(self, job: dict[str, Any]) -> int:
        return min(self.now + job["law"].window_ms, job["deadline"])

    def JobAttest(self, sender: bytes, op: JobAttest) -> None:
        need(op.job in self.jobs)
        job = self.jobs[op.job]
        need(job["state"] in ENDING)
        root = job["roots"][-1][0] if job["roots"] else bytes(32)
        said = OutputAttestation(self.chain, op.job, root, job["output"])  # type: ignore[arg-type]
        need(job["owner"] not in {mark.signer for mark in op.marks})
        need(self.quorum_marked(job, op.marks, "farflung/attest/1", encode(said)))
        need(all(job["leases"][mark.signer]["stake"] for mark in op.marks))
        job["until"] = min(job["until"], self.now)

    # Slashing

    def JobSlash(self, sender: bytes, op: ops.JobSlash) -> None:
        need(op.job in self.jobs)
        job = self.jobs[op.job]
        auditors = self.auditors(job)
        need(sender == job["owner"] or sender in auditors)
        if sender == job["owner"]:
            self.speaks(op.job)
        need(job["state"] == "running" or (job["state"] in ENDING and self.now < job["until"]))
        lease = job["leases"].get(op.node)
        need(lease and lease["role"] == 0 and not lease["over"])
        need(lease["stake"])
        said = [signed.verdict for signed in op.verdicts]
        for signed in op.verdicts:
            v = signed.verdict
            need(v.verifier in auditors)
            need(is_signed(v.verifier, signed.signature, "farflung/verdict/1", encode(v)))
            need((v.chain, v.job, v.node) == (self.chain, op.job, op.node))
            need(int(v.finding) == 3 or (int(v.finding) == 2 and v.excess > 2000))
        need(job["owner"] not in {v.verifier for v in said})
        opens = self.opens(op)
        need(said and len(said) == len({v.verifier for v in said}))
        need(len(said) >= (min(2, len(auditors)) if opens else 2))
        need(len(said) <= 16)
        need(len({(v.round, v.segment, v.trace, v.finding) for v in said}) == 1)
        number = said[0].round.to_bytes(8, "little")
        parts = (op.claim.payload, op.claim.weight.to_bytes(8, "little"), said[0].trace, op.claim.nonce)
        promise = digest("farflung/commitment/1", op.job, op.node, number, *parts)
        need(is_signed(op.node, op.claim.signature, "farflung/ack/1", op.job, number, promise))
        need(op.evidence != bytes(32))
        taken = lease["stake"]
        if int(said[0].finding) == 3:
            taken = taken * job["law"].withheld_permille // 1000
        lease["over"], lease["locked"] = True, False
        self.nodes[op.node]["free"] += lease["stake"] - taken
        self.accuse(op.job, op.node, taken, sorted(v.verifier for v in said), op.evidence, found=opens)

    def opens(self, op: ops.JobSlash) -> bool:
        """Whether it shows that the job has a graph."""
        if op.program.graph == bytes(32):
            return False
        need(op.job == digest("farflung/spec/1", op.terms, encode(op.program)) and programs.is_sound(op.program))
        return True

    def accuse(
        self, name: bytes, node: bytes, taken: int, accusers: list[bytes], evidence: bytes, *, found: bool = True
    ) -> None:
        """`found`: the accusers earn by it, where nobody may answer."""
        job = self.jobs[name]
        lease = job["leases"][node]
        if job["law"].dispute_ms == 0:
            self.bounty(node, taken, accusers if found else [], is_lie=taken == lease["stake"])
            lease["slashed"], lease["lost"] = True, taken
            job["burnt"] += 0 if found else max(lease["units"], lease["vouched"]) * lease["price"]
            self.put_out(name, node, evidence, is_lie=taken == lease["stake"], final=False)
            return
        most = lease["max"] * lease["price"]
        job["escrow"] -= most
        self.disputes[name, node] = {
            "state": "open",
            "accusers": accusers,
            "taken": taken,
            "pay": most,
            "bond": 0,
            "opened": self.now,
            "evidence": evidence,
            "deadline": self.now + job["law"].dispute_ms,
            "votes": {},
        }

    def bounty(self, node: bytes, taken: int, accusers: list[bytes], *, is_lie: bool) -> None:
        left = taken
        for name in accusers if is_lie else ():
            self.pay(name, taken // 2 // len(accusers))
            left -= taken // 2 // len(accusers)
        self.nodes[node]["burnt"] += left

    # Disputes

    def DisputeAnswer(self, sender: bytes, op: DisputeAnswer) -> None:
        need((op.job, sender) in self.disputes)
        dispute = self.disputes[op.job, sender]
        need(dispute["state"] == "open")
        need(op.bond >= self.jobs[op.job]["law"].bond_min and op.evidence != bytes(32))
        self.pay(sender, -op.bond)
        later = self.now + dispute["deadline"] - dispute["opened"]
        dispute.update(state="answered", bond=op.bond, deadline=later, answer=op.evidence)

    def JuryVote(self, sender: bytes, op: JuryVote) -> None:
        need((op.job, op.node) in self.disputes)
        dispute = self.disputes[op.job, op.node]
        need(dispute["state"] == "answered" and sender not in dispute["votes"])
        own_case = {self.jobs[op.job]["owner"], op.node, *dispute["accusers"]}
        jury = [name for name in self.owners() if name not in own_case]
        need(sender in jury)
        dispute["votes"][sender] = op.is_guilty
        same = [name for name in jury if dispute["votes"].get(name) == op.is_guilty]
        if len(same) * 3 > len(jury) * 2:
            self.decide(op.job, op.node, "upheld" if op.is_guilty else "overturned")

    def disputes_past_their_deadline(self) -> None:
        for (job, node), dispute in self.disputes.items():
            if dispute["state"] in ("open", "answered") and self.now >= dispute["deadline"]:
                self.decide(job, node, "upheld" if dispute["state"] == "open" else "lapsed")

    def decide(self, name: bytes, node: bytes, state: str) -> None:
        dispute, job = self.disputes[name, node], self.jobs[name]
        silent = dispute["state"] == "open"
        lease = job["leases"][node]
        dispute["state"] = state
        due = 0
        if state == "upheld":
            is_lie = dispute["taken"] == lease["stake"]
            self.bounty(node, dispute["taken"] + dispute["bond"], dispute["accusers"], is_lie=is_lie)
            lease["slashed"], lease["lost"] = True, dispute["taken"]
            self.put_out(name, node, dispute["evidence"], is_lie=is_lie, final=not silent)
        else:
            due = max(lease["units"], lease["vouched"]) * lease["price"]
            self.pay(node, dispute["taken"] + dispute["bond"] + due)
            job["paid"] += due
        self.pay(job["owner"], dispute["pay"] - due)
        for accuser in dispute["accusers"]:
            theirs = job["leases"][accuser]
            if state == "overturned" and theirs["locked"]:
                self.pay(node, theirs["stake"] // 2)
                self.nodes[accuser]["burnt"] += theirs["stake"] - theirs["stake"] // 2
                theirs.update(over=True, locked=False, slashed=True, lost=theirs["stake"])
                self.put_out(name, accuser, dispute["answer"], is_lie=True, final=True)
            self.unlock(name, accuser)
