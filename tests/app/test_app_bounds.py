"""Bounds that a model can meet, lowered: what `plan` refuses, `run` refuses in the same words, before escrow."""

from pathlib import Path

import pytest

import farflung
from farflung.core import limits
from farflung.core.errors import FarflungError
from farflung.peers.rundir.folder import RunFolder

FLAGS = {"network.providers": "2", "network.verifiers": "1"}


def refused(what, **more) -> str:
    """The code of what `plan` or `run` says to this job; empty: it takes it."""
    try:
        what(preset="tiny", set=FLAGS, **more)
    except FarflungError as error:
        return error.code if error.cause and error.hint else "no cause, or nothing to do"
    return ""


@pytest.mark.parametrize(("bound", "code"), [("OBJECT_BYTES", "FF-PLAN-003"), ("PAYLOAD_BYTES", "FF-COMP-023")])
def test_where_a_plan_ends_a_run_ends_before_escrow(
    bound: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_small, enough = 0, 4 * limits.MIB
    while enough - too_small > max(1, enough // 64):  # walked to where it ends
        middle = (too_small + enough) // 2
        monkeypatch.setattr(limits, bound, middle)
        said = refused(farflung.plan)
        assert said in ("", code)
        too_small, enough = (middle, enough) if said else (too_small, middle)
    monkeypatch.setattr(limits, bound, too_small)
    assert refused(farflung.run, out=tmp_path / "run") == code
    assert not RunFolder(tmp_path / "run").ledger.exists()
