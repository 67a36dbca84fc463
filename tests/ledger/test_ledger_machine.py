"""Random histories: money is conserved, the naive ledger agrees, and the clock alone returns all but what is burnt."""

from __future__ import annotations

import pytest
from hypothesis import settings
from machine_canaries import CanaryRules
from machine_jobs import JobRules
from machine_money import MoneyRules
from machine_out import OutRules
from machine_pay import PayRules
from machine_seats import SeatRules

pytestmark = pytest.mark.timeout(700)  # a history that fails is shortened for up to 300 s, and only then told

MIXINS = (MoneyRules, JobRules, PayRules, CanaryRules, OutRules, SeatRules)


class Ledger(MoneyRules, JobRules, PayRules, CanaryRules, OutRules, SeatRules):
    """All operations by several actors, likely and unlikely to succeed, several to a block."""


class Pay(PayRules, CanaryRules, OutRules):
    """Vouchers, windows, disputes, canaries and exclusions alone, so that their states are deep."""


TestLedger = Ledger.TestCase
TestPay = Pay.TestCase
TestPay.settings = settings(max_examples=30, stateful_step_count=25)
TestLedger.pytestmark = [pytest.mark.slow]  # TestPay has all but the jobs of several
TestLedger.settings = settings(max_examples=30, stateful_step_count=40)


def test_no_rule_hides_another_of_its_name():
    names = [name for mixin in MIXINS for name in vars(mixin) if not name.startswith("_")]
    assert len(set(names)) == len(names)
    assert all(mixin in Ledger.__mro__ for mixin in MIXINS)
