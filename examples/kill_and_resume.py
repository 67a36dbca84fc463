"""Kills a whole network in the middle of a run, resumes it, and compares with a run that nobody disturbed.

    python examples/kill_and_resume.py [OPTIONS OF farflung run]

SIGKILL goes to every process at once: requester, ledger, agents, workers. Nothing can be said or saved in that
moment; all that counts was on disk before.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FARFLUNG = [sys.executable, "-m", "farflung.app.cli.main"]


def result(*words: str) -> dict[str, Any]:
    """Runs a command to its end; its last event."""
    done = subprocess.run([*FARFLUNG, *words, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


def killed_after_a_round(*words: str) -> int:
    """Starts a run and kills the tree when its first round is closed; how many processes that were."""
    tree = subprocess.Popen([*FARFLUNG, *words, "--json"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert tree.stdout is not None
    processes = 1
    for line in tree.stdout:
        event = json.loads(line)["event"]
        processes += event == "process"
        if event == "round":
            break
    os.killpg(tree.pid, signal.SIGKILL)
    tree.communicate()
    return processes


def main() -> int:
    """0 when both runs end in the same model and the same ledger."""
    job = ["run", "--preset", "tiny", *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="farflung-") as folder:
        whole, broken = str(Path(folder, "whole")), str(Path(folder, "broken"))
        undisturbed = result(*job, "--out", whole)
        print(f"undisturbed   model {undisturbed['model_hash']}")
        print(f"killed        {killed_after_a_round(*job, '--out', broken)} processes, after the first round")
        resumed = result("resume", broken)
        print(f"resumed       model {resumed['model_hash']}")
    print(f"computed again: {resumed['reexecuted']} contributions")
    same = [undisturbed[key] == resumed[key] for key in ("model_hash", "ledger_root", "paid")]
    print("the same model, ledger and pay" if all(same) else "NOT the same")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
