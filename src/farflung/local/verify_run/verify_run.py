"""Verifies a finished run against its own folder, as thoroughly as asked: `verify-run`, and `Run.verify`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from farflung.core.errors import UsageError
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.ledger.receipt_file import read_receipt_file
from farflung.local.jobs.base_run import find_exported
from farflung.local.verify_run.reexecute import reexecute, retry
from farflung.peers.process.channel import REQUESTER
from farflung.peers.rundir.export import read_export
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.genesis import MOST_RELAYS, NetworkKeys
from farflung.peers.rundir.network_record import node_name
from farflung.verify.export_reader import ExportedRun
from farflung.verify.replay_report import ReplayReport, require
from farflung.verify.run_replay import check_parents, prove_run

T = TypeVar("T")


def prove(
    run: RunFolder,
    chain: Hash | None,
    parents: Sequence[str] = (),
    rate: float | None = None,
    seed: int = 1,
    condemned: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> ReplayReport:
    """Recomputes a run, and those that it stands on; trains a share of it again, or what its audits condemned.

    `tell` hears how far the training is. Raises UsageError FF-APP-391, and VerificationError or RunError
    (peers.rundir.export, local.verify_run.reexecute).
    """
    if not 0 <= seed < 1 << 63 or (rate is not None and not 0 < rate <= 1):
        raise UsageError(
            "FF-APP-391",
            "no segments can be drawn so",
            cause=f"a share of {rate} by seed {seed}",
            hint="a share is above 0 and at most 1, a seed 0 to 2^63 - 1",
        )
    above, exported = [read_export(find_exported(parent)) for parent in parents], read_export(run)
    proven = check_parents(prove_run(exported, chain), above)
    if chain is not None:
        _check_names(exported, None if run.network_file.exists() else proven.terms)
    if rate is not None:
        proven.report.again = _done(reexecute(run, exported, proven, rate, seed, tell))
    if condemned:
        proven.report.retried = _done(retry(run, exported, proven, tell))
    return proven.report


def _check_names(exported: ExportedRun, local: JobTerms | None) -> None:
    """Each receipt is of the party that its name says: on a network it ends in the key, in a run on this computer
    (`local`: its terms) the party follows from the job. Raises VerificationError FF-VERI-160.
    """
    parties = NetworkKeys(local.spec, MOST_RELAYS).parties if local is not None else {}
    for name, data in exported.receipt_files.items():
        party = read_receipt_file(data).party
        is_own = party == parties.get(name) if local is not None else name in (REQUESTER, node_name(party))
        require(is_own, "FF-VERI-160", "a receipt is another party's than its name says", f"{name[:40]}.receipt")


def _done(work: Coroutine[Any, Any, T]) -> T:
    """What comes of it; beside the loop where one runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "farflung") as beside:
        return beside.submit(asyncio.run, work).result()
