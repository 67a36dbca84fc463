"""The naive ledger's exclusions: who holds no lease, and its appeal, as docs/protocol/ledger.md has them."""

from __future__ import annotations

from typing import Any

from naive_base import need

from farflung.ledger.exclusions import Appeal, AppealVote, HostTampered

NONE = bytes(32)
FALSE, WITHHELD, TAMPERED = 0, 1, 2


class NaiveExclusions:
    now: int
    jobs: dict[bytes, dict[str, Any]]
    nodes: dict[bytes, dict[str, Any]]
    out: dict[bytes, dict[str, Any]]

    def pay(self, who: bytes, amount: int) -> None:
        raise NotImplementedError

    def owners(self) -> list[bytes]:
        raise NotImplementedError

    def is_out(self, node: bytes) -> bool:
        return node in self.out and self.now < self.out[node]["until"]

    def put_out(self, name: bytes, node: bytes, evidence: bytes, *, is_lie: bool, final: bool) -> None:
        self.fault(name, node, evidence, FALSE if is_lie else WITHHELD, final)

    def fault(self, name: bytes, node: bytes, evidence: bytes, fault: int, final: bool) -> None:
        law = self.jobs[name]["law"]
        if law.exclusion_ms == 0:
            return
        fresh = {"job": NONE, "fault": WITHHELD, "evidence": NONE, "until": 0, "faults": 0, "final": False}
        fresh |= {"answer": NONE, "bond": 0, "deadline": 0, "guilty": set(), "innocent": set()}
        known = self.out.setdefault(node, dict(fresh))
        known["faults"] += 1
        if fault != WITHHELD or known["faults"] >= law.exclusion_faults:
            self.pay(node, known["bond"])
            fresh |= {"job": name, "fault": fault, "evidence": evidence, "final": final}
            self.out[node] = fresh | {"until": self.now + law.exclusion_ms}

    def appeals_past_their_deadline(self) -> None:
        for node, said in self.out.items():
            if said["deadline"] and self.now >= said["deadline"]:
                self.pay(node, said["bond"])
                said.update(bond=0, deadline=0)

    def HostTampered(self, sender: bytes, op: HostTampered) -> None:
        need(op.job in self.jobs and op.evidence != NONE)
        lease = self.jobs[op.job]["leases"].get(sender)
        need(lease and not lease["over"])
        self.fault(op.job, sender, op.evidence, TAMPERED, False)

    def Appeal(self, sender: bytes, op: Appeal) -> None:
        need(self.is_out(sender))
        said = self.out[sender]
        need(not said["deadline"] and not said["final"])
        law = self.jobs[said["job"]]["law"]
        need(op.bond >= law.bond_min and op.evidence != NONE)
        self.pay(sender, -op.bond)
        said.update(answer=op.evidence, bond=op.bond, deadline=self.now + law.appeal_ms)
        said.update(guilty=set(), innocent=set())

    def AppealVote(self, sender: bytes, op: AppealVote) -> None:
        need(op.node in self.out and self.out[op.node]["deadline"])
        said = self.out[op.node]
        job = self.jobs[said["job"]]
        parties = {job["owner"], op.node, *job["leases"]}
        jury = [name for name in self.owners() if name not in parties]
        need(sender in jury and sender not in said["guilty"] | said["innocent"])
        same = said["guilty" if op.is_guilty else "innocent"]
        same.add(sender)
        if 3 * sum(name in same for name in jury) <= 2 * len(jury):
            return
        if op.is_guilty:
            each = said["bond"] // 2 // len(same)
            for name in same:
                self.pay(name, each)
            self.nodes[op.node]["burnt"] += said["bond"] - each * len(same)
            said["final"] = True
        else:
            self.pay(op.node, said["bond"])
            said["until"] = 0
        said.update(bond=0, deadline=0)
