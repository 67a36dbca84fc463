"""`farflung check` as people start it, in broken surroundings: it names what is broken, and it always ends."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farflung.host.findings import MISSED

# How quick a probe is depends on what else the machine does: here each may take its time.
PATIENT = """
from farflung.host.io import doctor_probes as probing
measure = probing.measure
probing.measure = lambda asked: measure(asked, 60.0)
"""


def check(*arguments: str, before: Any = None, code: str = PATIENT, **variables: str) -> tuple[int, Any]:
    start = code + "from farflung.app.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, "check", "--json", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        preexec_fn=before,
        check=False,
    )
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def findings_of(facts: Any) -> dict[str, Any]:
    return {one["name"]: one for one in facts["findings"]}


def test_a_broken_torch_a_file_for_a_folder_and_a_taken_port_are_named(tmp_path: Path) -> None:
    fake = tmp_path / "path" / "torch" / "__init__.py"
    fake.parent.mkdir(parents=True)
    fake.write_text("raise ImportError('libtorch_cpu.so: undefined symbol')")
    (tmp_path / "runs").write_bytes(b"")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        path = os.pathsep.join([str(tmp_path / "path"), *sys.path])
        status, facts = check(
            "--port", port, PYTHONPATH=path, FARFLUNG_RUNS=str(tmp_path / "runs"), FARFLUNG_SANDBOX="nonsense"
        )
    assert status == 1
    assert facts["can_run"] is False
    found = findings_of(facts)
    codes = {name: one["code"] for name, one in found.items() if one["state"] == "fails"}
    assert codes == {
        "torch": "FF-HOST-081",
        "disk": "FF-HOST-083",
        "runs": "FF-HOST-083",
        "port": "FF-HOST-085",
        "sandbox": "FF-HOST-003",
    }
    assert "undefined symbol" in found["torch"]["cause"]
    assert "unset PYTHONPATH" in found["torch"]["step"]
    assert "FARFLUNG_RUNS" in found["runs"]["step"]
    assert port in found["port"]["step"]
    assert facts["sandbox"]["tier"] is None


@pytest.mark.whole
def test_low_limits_are_named_with_the_command_that_lifts_them(tmp_path: Path) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 4096))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    status, facts = check(before=lower, FARFLUNG_RUNS=str(tmp_path), TMPDIR=str(tmp_path / "none"))
    found = findings_of(facts)
    assert status == 1
    assert (found["files"]["state"], found["files"]["step"]) == ("fails", "ulimit -n 1024")
    assert (found["disk"]["state"], found["disk"]["step"]) == ("fails", "ulimit -f unlimited")
    assert found["runs"]["state"] == "ok"
    assert found["temporary"]["cause"] == f"TMPDIR names {tmp_path}/none, where nothing can be written"


HANG = """
import time
from farflung.host.io import doctor_probes as probing
whole = probing.probes
measure = probing.measure
probing.measure = lambda asked: measure(asked, 2.0)
probing.probes = lambda runs, port: [
    probing.CheckProbe("disk", lambda _: time.sleep(3600)), *(one for one in whole(runs, port) if one.name == "random")
]
"""


@pytest.mark.whole
def test_a_check_ends_where_a_probe_hangs_and_says_so() -> None:
    status, facts = check(code=HANG)
    found = findings_of(facts)
    assert status == 0
    assert found["random"]["state"] == "ok"
    assert (found["disk"]["state"], found["disk"]["measured"]) == ("unknown", MISSED)
    assert facts["default_run_seconds"] is None


@pytest.mark.whole
@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(variables: dict[str, str], is_coloured: bool) -> None:
    own, theirs = pty.openpty()
    code = HANG + "from farflung.app.cli.main import main; main(['check'])"
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environment |= {"COLUMNS": "60", "TERM": "xterm", **variables}
    try:
        subprocess.run([sys.executable, "-c", code], env=environment, stdout=theirs, check=True)
        text = os.read(own, 1 << 16).decode().replace("\r", "")
    finally:
        os.close(own)
        os.close(theirs)
    assert ("\x1b[" in text) == is_coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"warn +terminal +60 columns", plain)
    assert "1 ok, 0 slow, 1 warn (terminal), 1 unknown (disk), 0 fail" in " ".join(plain.split())
    assert max(len(line) for line in plain.splitlines() if " try " not in line) <= 60
