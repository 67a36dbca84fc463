"""The naive ledger's committees: validators, motions, epochs; plain lists and dictionaries."""

from __future__ import annotations

from typing import Any

from naive_base import need, of_small_order

from farflung.core.codec import encode
from farflung.core.crypto import digest, is_signed
from farflung.ledger.block import Genesis
from farflung.ledger.motions import Motion, MotionVote
from farflung.ledger.params import LedgerParams
from farflung.ledger.validators import ValidatorAccuse, ValidatorJoin, ValidatorLeave

YEAR = 366 * 24 * 3600 * 1000


def is_a_law(p: LedgerParams) -> bool:
    numbers = [getattr(p, name) for name in p.__struct_fields__]
    return (
        all(0 <= n < 2**63 for n in numbers)
        and p.withheld_permille <= 1000
        and p.step_ms_max >= 1
        and p.fee_min <= 10**12
        and p.committee_max in range(1, 101)
        and p.epoch_blocks in range(1, 65537)
        and p.challenge_rounds <= 16
        and max(p.unbonding_ms, p.dispute_ms, p.motion_ms, p.exclusion_ms, p.appeal_ms) <= YEAR
        and p.delta_ms in range(1, 3600001)
        and p.idle_ms in range(1, 3600001)
    )


class NaiveSeats:
    chain: bytes
    now: int
    money: dict[bytes, int]

    def pay(self, who: bytes, amount: int) -> None:
        raise NotImplementedError

    def found(self, genesis: Genesis) -> None:
        self.height = 0
        self.epochs = [{"first": 1, "members": list(genesis.validators), "params": genesis.params}]
        self.p = genesis.params
        self.amended: LedgerParams | None = None
        self.version, self.coming = 0, 1
        self.seats: dict[bytes, dict[str, Any]] = {
            key: {"owner": key, "stake": 0, "state": "admitted", "since": 0, "until": 0, "burnt": 0, "where": ""}
            for key in genesis.validators
        }
        self.moved: dict[bytes, dict[str, Any]] = {}

    def members(self) -> list[bytes]:
        return self.epochs[-1]["members"]  # type: ignore[return-value]

    def owners(self) -> list[bytes]:
        return [self.seats[member]["owner"] for member in self.members()]

    def seats_past_their_time(self) -> None:
        for seat in self.seats.values():
            if seat["until"] and self.now >= seat["until"]:
                self.go(seat)
        for motion in self.moved.values():
            if motion["state"] == "open" and self.now >= motion["deadline"]:
                motion["state"] = "lapsed"

    def boundary(self) -> None:
        first: int = self.epochs[-1]["first"]  # type: ignore[assignment]
        if (self.height - first + 1) % self.p.epoch_blocks == 0:
            names = list(self.seats)
            able = [name for name in names if self.seats[name]["state"] == "admitted"]
            able.sort(key=lambda name: (self.seats[name]["since"], names.index(name)))
            after = able[: self.p.committee_max] or self.members()
            for seat in self.seats.values():
                if seat["state"] == "leaving" and not seat["until"]:
                    seat["until"] = self.now + self.p.unbonding_ms
            if after != self.members() or self.amended:
                self.version += self.amended is not None
                self.p = self.amended or self.p
                self.epochs.append({"first": self.height + 1, "members": after, "params": self.p})
                self.amended = None

    def note_law(self) -> None:
        """What the table of motions says of the law beside the parameters that come."""
        if self.coming > 1:
            name = digest("farflung/law/1", (self.version + 1).to_bytes(8, "big"))
            self.moved[name] = {"what": self.coming, "deadline": 0, "votes": [], "state": "passed"}

    def go(self, seat: dict[str, Any]) -> None:
        self.pay(seat["owner"], seat["stake"])
        seat.update(stake=0, until=0, state="gone")

    def ValidatorJoin(self, sender: bytes, op: ValidatorJoin) -> None:
        need(not of_small_order(op.validator))
        need(is_signed(op.validator, op.signature, "farflung/seat/1", self.chain, sender))
        fresh = {"owner": sender, "stake": 0, "state": "gone", "since": 0, "until": 0, "burnt": 0}
        seat = self.seats.setdefault(op.validator, fresh)
        need(seat["owner"] == sender and seat["state"] not in ("leaving", "jailed"))
        stake = max(seat["stake"], op.stake)
        need(stake >= self.p.validator_stake_min)
        self.pay(sender, seat["stake"] - stake)
        seat.update(stake=stake, where=op.address)
        if seat["state"] != "admitted":
            seat.update(state="candidate", until=self.now + self.p.unbonding_ms)

    def ValidatorLeave(self, sender: bytes, op: ValidatorLeave) -> None:
        need(op.validator in self.seats)
        seat = self.seats[op.validator]
        need(seat["owner"] == sender and seat["state"] in ("candidate", "admitted"))
        if seat["state"] == "candidate":
            self.go(seat)
        else:
            self.unseat(op.validator)

    def unseat(self, name: bytes) -> None:
        until = 0 if name in self.members() else self.now + self.p.unbonding_ms
        self.seats[name].update(state="leaving", until=until)

    def ValidatorAccuse(self, sender: bytes, op: ValidatorAccuse) -> None:
        one, two = op.first.vote, op.second.vote
        need(one.chain == two.chain == self.chain and op.first.seat == op.second.seat)
        need((one.epoch, one.view) == (two.epoch, two.view))
        kinds = sorted((int(one.kind), int(two.kind)))
        need(kinds in ([0, 0], [2, 2], [1, 2]))
        need(kinds == [1, 2] or one.block != two.block)
        need(one.epoch < len(self.epochs))
        members: list[bytes] = self.epochs[one.epoch]["members"]  # type: ignore[assignment]
        need(op.first.seat < len(members))
        name = members[op.first.seat]
        for signed in (op.first, op.second):
            need(is_signed(name, signed.signature, "farflung/vote/1", encode(signed.vote)))
        seat = self.seats[name]
        need(seat["state"] != "jailed")
        half = seat["stake"] // 2
        seat.update(state="jailed", burnt=seat["burnt"] + seat["stake"] - half, stake=0, until=0)
        self.pay(sender, half)

    def Motion(self, sender: bytes, op: Motion) -> None:
        name = digest("farflung/motion/1", self.chain, sender, encode(op))
        need(self.now < op.deadline <= self.now + self.p.motion_ms and name not in self.moved)
        self.moved[name] = {"what": op.what, "deadline": op.deadline, "votes": [], "state": "open"}
        self.MotionVote(sender, MotionVote(name))

    def MotionVote(self, sender: bytes, op: MotionVote) -> None:
        need(op.motion in self.moved)
        motion = self.moved[op.motion]
        need(motion["state"] == "open" and sender not in motion["votes"] and sender in self.owners())
        what, kind = motion["what"], type(motion["what"]).__name__
        if kind == "AmendParams":
            need(is_a_law(what.params))
        elif kind == "AdoptLaw":
            need(what.law == self.coming + 1)
        else:
            need(what.validator in self.seats)
            wanted = "candidate" if kind == "AdmitValidator" else "admitted"
            need(self.seats[what.validator]["state"] == wanted)
        motion["votes"].append(sender)
        if 3 * sum(owner in motion["votes"] for owner in self.owners()) > 2 * len(self.members()):
            motion["state"] = "passed"
            if kind in ("AmendParams", "AdoptLaw"):
                self.amended = what.params if kind == "AmendParams" else self.amended or self.p
                self.coming = what.law if kind == "AdoptLaw" else self.coming
                self.note_law()
            elif kind == "AdmitValidator":
                self.seats[what.validator].update(state="admitted", since=self.height, until=0)
            else:
                self.unseat(what.validator)
