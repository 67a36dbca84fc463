"""The files in deploy/ name commands and flags that exist, and what they leave out is not needed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from farflung.app.cli import check as cli_check
from farflung.app.cli import ledger_init, relay

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "farflung-relay.service"
CONTAINER = ROOT / "deploy" / "Containerfile.relay"
VERBS: dict[str, click.Command] = {"relay": relay.relay, "check": cli_check.check}
# How a library is called where it is imported.
MODULES = {"py-ed25519-zebra-bindings": "zebra"}


def parsed(words: list[str]) -> dict[str, object]:
    """What the verb makes of its flags. Raises click.UsageError."""
    program, verb, *flags = words
    assert Path(program).name == "farflung"
    return VERBS[verb].make_context(verb, flags).params


def settings(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def instructions(text: str) -> list[tuple[str, str]]:
    """A container file's instructions, lines that go on put together."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = [line for line in re.sub(r"\\\n\s*", "", kept).splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_unit_starts_a_relay_with_flags_that_exist() -> None:
    of = dict(settings(UNIT.read_text()))
    start = of["ExecStart"].replace("%S", "/var/lib")
    params = parsed(shlex.split(start.replace("$RELAY_OPTIONS", "--uplink 20")))
    assert (params["host"], params["port"], params["uplink"]) == ("0.0.0.0", relay.PORT, 20.0)
    assert str(params["path"]) == f"/var/lib/{of['StateDirectory']}/relay.key"
    assert of["StateDirectoryMode"] == "0700"


def test_the_unit_keeps_its_relay_from_all_that_it_does_not_need() -> None:
    of = dict(settings(UNIT.read_text()))
    yes = "DynamicUser NoNewPrivileges ProtectHome PrivateTmp PrivateDevices MemoryDenyWriteExecute"
    assert {name: of[name] for name in yes.split()} == dict.fromkeys(yes.split(), "yes")
    assert of["ProtectSystem"] == "strict"
    assert of["CapabilityBoundingSet"] == ""
    assert int(of["LimitNOFILE"]) >= 6 * 1024


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/farflung/bin/farflung", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    about = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, about) == (0, [])


def test_the_container_starts_and_checks_a_relay_with_flags_that_exist() -> None:
    said = instructions(CONTAINER.read_text())
    names = [name for name, _ in said]
    assert set(names) <= {
        "FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENV", "HEALTHCHECK", "ENTRYPOINT"
    }  # fmt: skip
    of = dict(said)
    params = parsed(json.loads(of["ENTRYPOINT"]))
    assert of["EXPOSE"] == f"{params['port']}/tcp"
    assert str(params["path"]).startswith(of["VOLUME"] + "/")
    health = parsed(json.loads(of["HEALTHCHECK"].partition("CMD ")[2]))
    assert [(one.host, one.port) for one in health["relays"]] == [("127.0.0.1", params["port"])]  # type: ignore[attr-defined]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert of["USER"] not in ("root", "0")
    copied = [source for name, rest in said if name == "COPY" for source in rest.split()[:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []


@pytest.mark.slow
def test_a_relay_and_its_check_need_no_library_that_the_container_leaves_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    more = project["optional-dependencies"]
    needed = {re.split(r"[><=]", line)[0] for line in (*project["dependencies"], *more["train"], *more["report"])}
    installed = set(re.findall(r"constraints.txt\s+(.*?)\s+&&", runs())[0].split())
    assert installed <= needed
    out = sorted(MODULES.get(name, name) for name in needed - installed)
    assert "torch" in out
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({out!r}))\n"
        "from farflung.app.cli.main import main\n"
        "sys.exit(main())\n"
    )
    for words in (["relay", "--help"], ["check", "--net", "--json"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_service_is_installed_with_the_libraries_of_the_container() -> None:
    page = (ROOT / "docs" / "operate" / "relay.md").read_text()
    (shown,) = re.findall(r"/opt/farflung/bin/pip install -c constraints.txt (.*)", page)
    assert shown.split() == re.findall(r"constraints.txt\s+(.*?)\s+&&", runs())[0].split()
    assert "pip install --no-deps ." in page
    assert "--no-deps ." in runs()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_relay_runs_where_no_memory_may_become_a_program(tmp_path: Path) -> None:
    """As under MemoryDenyWriteExecute of the unit: PR_SET_MDWE of Linux 6.3 does the same, and is inherited."""
    limited = "import ctypes, os, sys; sys.exit(77) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else None; "
    start = f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'farflung.app.cli.main', *sys.argv[1:]])"
    words = ["relay", "--port", "0", "--key", str(tmp_path / "relay.key"), "--json"]
    process = subprocess.Popen([sys.executable, "-c", limited + start, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line and process.wait(100) == 77:
            pytest.skip("this kernel has no PR_SET_MDWE")
        place = f"127.0.0.1:{json.loads(line)['port']},{json.loads(line)['peer']}"
        check = [sys.executable, "-m", "farflung.app.cli.main", "check", "--net", "--json", "--relay", place]
        told = json.loads(subprocess.run(check, capture_output=True, text=True, check=False).stdout)
        assert [one["state"] for one in told["findings"] if one["name"] == "relay"] == ["ok"]
    finally:
        process.kill()
        process.communicate()


def runs() -> str:
    return "\n".join(rest for name, rest in instructions(CONTAINER.read_text()) if name == "RUN")


def test_the_validator_s_unit_and_container_serve_a_configuration() -> None:
    of = dict(settings((ROOT / "deploy" / "farflung-validator.service").read_text()))
    words = shlex.split(of["ExecStart"].replace("%S", "/var/lib"))
    params = ledger_init.validator.make_context("validator", words[3:]).params
    assert words[1:3] == ["ledger", "validator"]
    assert str(params["config"]) == f"/var/lib/{of['StateDirectory']}/validator.toml"
    yes = "DynamicUser NoNewPrivileges ProtectHome PrivateTmp PrivateDevices MemoryDenyWriteExecute"
    assert {name: of[name] for name in yes.split()} == dict.fromkeys(yes.split(), "yes")
    said = dict(instructions((ROOT / "deploy" / "Containerfile.validator").read_text()))
    start = json.loads(said["ENTRYPOINT"])
    assert str(ledger_init.validator.make_context("validator", start[3:]).params["config"]).startswith(said["VOLUME"])
    assert said["USER"] not in ("root", "0")
