"""A whole run in a namespace of its own: `bytes_sent` against the kernel's interface counters, and who listens."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, pathlib, subprocess, sys, threading, time

def kernel():
    return int(pathlib.Path("/sys/class/net/lo/statistics/tx_bytes").read_text())

def listeners():
    # state 0A = LISTEN; the address is hexadecimal, little-endian
    rows = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {row.split()[1].split(":")[0] for row in rows if row.split()[3] == "0A"}

before, seen = kernel(), set()
command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", *sys.argv[1:]]
run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
lines = []
for line in run.stdout:
    lines.append(line)
    seen |= listeners()
assert run.wait() == 0
last = json.loads(lines[-1])
print(json.dumps({"counted": last["bytes_sent"], "kernel": kernel() - before, "listeners": sorted(seen)}))
"""


@pytest.mark.netns
@pytest.mark.timeout(300)
def test_bytes_sent_of_a_run_agree_with_the_kernel_and_only_loopback_listens(tmp_path: Path) -> None:
    ip = shutil.which("ip")
    if os.geteuid() != 0 or ip is None:
        pytest.skip("needs root and the `ip` command")
    name = f"ff-run-{os.getpid()}"
    if subprocess.run([ip, "netns", "add", name], capture_output=True, check=False).returncode:
        pytest.skip("`ip netns add` does not work here")
    try:
        subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
        job = ["--preset", "tiny", "--set", "network.providers=3", "--set", "data.limit=4000000"]
        done = subprocess.run(
            [ip, "netns", "exec", name, sys.executable, "-c", SCRIPT, *job],
            env={**os.environ, "FARFLUNG_RUNS": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
    finally:
        subprocess.run([ip, "netns", "del", name], check=True)
    assert abs(said["counted"] / said["kernel"] - 1) <= 0.05, said
    assert said["listeners"] == ["0100007F"], "somebody listens beyond 127.0.0.1"
