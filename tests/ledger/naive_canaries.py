"""The naive ledger's canaries: a verifier that said that planted work holds, as docs/protocol/ledger.md has it."""

from __future__ import annotations

from typing import Any

from naive_base import need

from farflung.core import merkle
from farflung.core.codec import encode
from farflung.core.crypto import digest, is_signed
from farflung.ledger import transactions as ops


class NaiveCanaries:
    chain: bytes
    now: int
    jobs: dict[bytes, dict[str, Any]]

    def speaks(self, job: bytes) -> None:
        raise NotImplementedError

    def accusing(self, job: bytes, node: bytes) -> int:
        raise NotImplementedError

    def accuse(self, name: bytes, node: bytes, taken: int, accusers: list[bytes], evidence: bytes) -> None:
        raise NotImplementedError

    def JobPerjury(self, sender: bytes, op: ops.JobPerjury) -> None:
        need(op.job in self.jobs)
        job, plant, v = self.jobs[op.job], op.canary.plant, op.canary.verdict.verdict
        need(sender in (job["owner"], v.node))
        if sender == job["owner"]:
            self.speaks(op.job)
        ended = job["state"] in ("output", "stopped")
        need(job["state"] == "running" or (ended and self.now < job["until"]))
        node, verifier = job["leases"].get(v.node), job["leases"].get(v.verifier)
        need(node and node["role"] == 0 and not node["over"])
        need(verifier and verifier["role"] == 1 and not verifier["over"])
        need(not self.accusing(op.job, v.verifier))
        need(verifier["stake"])
        need(v.round + 16 >= len(job["roots"]))
        need((v.chain, v.job) == (self.chain, op.job))
        self.planted(op.job, v, plant)
        need(is_signed(v.verifier, op.canary.verdict.signature, "farflung/verdict/1", encode(v)))
        need(int(v.finding) == 0)
        verifier["over"], verifier["locked"] = True, False
        self.accuse(op.job, v.verifier, verifier["stake"], [v.node], v.trace)

    def planted(self, job: bytes, v: ops.Verdict, plant: ops.PlantedTrace) -> None:
        k = len(plant.leaves) - 3
        need(4 <= k <= 64 and 0 <= v.segment < k)
        end, source = v.segment + 1, v.segment + 2
        if source >= k:
            source = v.segment - 1
        need((plant.end.round, plant.end.index) == (v.round, end))
        need((plant.source.round, plant.source.index) == (v.round, source))
        need(plant.leaves[end] == merkle.leaf_hash(end, encode(plant.end)))
        need(plant.leaves[source] == merkle.leaf_hash(source, encode(plant.source)))
        need(plant.end.params != plant.source.params and plant.end.steps != plant.source.steps)
        need(merkle.root_of_hashes(plant.leaves) == plant.trace)
        shown = [v.round, end, plant.end.steps, plant.source.params, plant.end.optimizer, plant.end.residual]
        changed = list(plant.leaves)
        changed[end] = merkle.leaf_hash(end, encode(shown))
        need(merkle.root_of_hashes(changed) == v.trace)
        number, weight = (n.to_bytes(8, "little") for n in (v.round, plant.truth.weight))
        for what, trace, nonce, signature in (
            ("farflung/commitment/1", plant.trace, plant.truth.nonce, plant.truth.signature),
            ("farflung/planted/1", v.trace, plant.nonce, plant.signature),
        ):
            said = digest(what, job, v.node, number, plant.truth.payload, weight, trace, nonce)
            need(is_signed(v.node, signature, "farflung/ack/1", job, number, said))
