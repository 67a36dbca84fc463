"""`farflung check --net` on congestion control: what is in use, and the exact command where bbr is not to be had."""

from __future__ import annotations

import errno
import json
import platform
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from farflung.app.cli import check
from farflung.host import doctor
from farflung.host import machine_readings as r
from farflung.host.findings import FindingState, ProbeFinding
from farflung.host.io import doctor_probes as probing
from farflung.host.io import doctor_sockets
from farflung.net.io import socket_options

STOCK = r.CongestionReading("linux", "bbr", "cubic", "cubic", errno.ENOENT, ("reno", "cubic"), ("reno", "cubic"), True)
ALLOW = 'as root, sysctl -w net.ipv4.tcp_allowed_congestion_control="reno cubic bbr"'
LINE = "net.ipv4.tcp_allowed_congestion_control = reno cubic bbr"


def judged(**fields: Any) -> ProbeFinding:
    return doctor.judge("congestion", msgspec.structs.replace(STOCK, **fields))


def below(finding: ProbeFinding, word: str) -> list[str]:
    return [detail.text for detail in finding.details if detail.word == word]


def test_bbr_that_is_given_is_ok_whatever_the_system_prefers_for_others() -> None:
    finding = judged(got="bbr", refusal=0, available=("reno", "cubic", "bbr"))
    assert finding.state == FindingState.OK
    assert finding.measured == (
        "bbr for connections to other computers; cubic for others; the system has reno cubic bbr; "
        "lets any user choose reno cubic"
    )
    assert "for others" not in judged(own="bbr", got="bbr", refusal=0).measured


def test_bbr_that_is_refused_names_the_setting_with_all_that_it_held_and_where_to_keep_it() -> None:
    finding = judged(refusal=errno.EPERM, available=("reno", "cubic", "bbr"))
    assert (finding.state, finding.step) == (FindingState.SLOW, ALLOW)
    assert "does not let this user choose it" in finding.cause
    assert below(finding, "line") == [LINE]
    assert "/etc/sysctl.d/60-farflung.conf" in below(finding, "keep")[0]


def test_bbr_that_is_not_loaded_is_loaded_first_and_allowed_then() -> None:
    for in_kernel in (True, None):
        finding = judged(is_in_kernel=in_kernel)
        assert (finding.state, finding.step) == (FindingState.SLOW, "as root, modprobe tcp_bbr")
        assert below(finding, "try") == [ALLOW]
        assert below(finding, "line") == ["tcp_bbr", LINE]
        assert "/etc/modules-load.d/60-farflung.conf" in below(finding, "keep")[0]


def test_a_kernel_without_bbr_is_not_told_to_load_it() -> None:
    finding = judged(is_in_kernel=False)
    assert finding.step == "start a kernel that has CONFIG_TCP_CONG_BBR"
    assert "modprobe" not in str(finding)


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
def test_other_systems_get_no_command_of_linux(system: str) -> None:
    finding = judged(system=system, own="", got="", refusal=0, available=(), allowed=())
    assert finding.state == FindingState.SLOW
    assert finding.measured == "the system's own choice"
    assert "sysctl" not in str(finding)
    assert "modprobe" not in str(finding)
    assert "relay near by" in str(finding)


def test_what_could_not_be_read_is_not_taken_away_from_others() -> None:
    finding = judged(refusal=errno.EPERM, allowed=())
    assert finding.step.endswith('="reno cubic bbr"')


names = st.lists(st.text("abcdefgh_", min_size=1, max_size=15), max_size=6).map(tuple)


@given(names, names, st.sampled_from([0, errno.EPERM, errno.ENOENT]), st.sampled_from([True, False, None]))
def test_the_command_takes_nothing_from_anybody(
    available: tuple[str, ...], allowed: tuple[str, ...], refusal: int, in_kernel: bool | None
) -> None:
    finding = judged(available=available, allowed=allowed, refusal=refusal, is_in_kernel=in_kernel)
    commands = [each for each in (finding.step, *below(finding, "try")) if "sysctl" in each]
    for command in commands:
        *start, setting = shlex.split(command)
        key, _, value = setting.partition("=")
        assert start == ["as", "root,", "sysctl", "-w"]
        assert key == "net.ipv4.tcp_allowed_congestion_control"
        assert value.split() == list(dict.fromkeys([*(allowed or ("reno", "cubic")), "bbr"]))
        assert f"{key} = {value}" in below(finding, "line")


def test_the_kernels_lists_of_modules_say_whether_it_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_sockets, "MODULES", tmp_path)
    assert doctor_sockets._is_in_kernel("tcp_bbr") is None
    folder = tmp_path / platform.release()
    folder.mkdir()
    (folder / "modules.dep").write_text("kernel/net/ipv4/tcp_bbr.ko.zst:\n")
    assert doctor_sockets._is_in_kernel("tcp_bbr") is True
    assert doctor_sockets._is_in_kernel("tcp_bb") is None  # the other list is missing
    (folder / "modules.builtin").write_text("kernel/net/ipv4/tcp_cubic.ko\n")
    assert doctor_sockets._is_in_kernel("tcp_cubic") is True
    assert doctor_sockets._is_in_kernel("tcp_bb") is False


def test_a_system_that_offers_no_choice_is_read_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_options, "_CONGESTION", None)
    monkeypatch.setattr(doctor_sockets, "CONTROLS", tmp_path)
    monkeypatch.setattr(doctor_sockets, "MODULES", tmp_path)
    reading = doctor_sockets.congestion()
    assert (reading.own, reading.got, reading.refusal) == ("", "", 0)
    assert (reading.available, reading.allowed, reading.is_in_kernel) == ((), (), None)


def test_only_check_net_asks_and_what_it_finds_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probes", lambda runs, port: [])
    monkeypatch.setattr(socket_options, "WANTED", "nonesuch")
    assert json.loads(CliRunner().invoke(check.check, ["--json"]).stdout)["findings"] == []
    facts = json.loads(CliRunner().invoke(check.check, ["--net", "--json"]).stdout)
    (told,) = [one for one in facts["findings"] if one["name"] == "congestion"]
    assert told["state"] == "slow"
    assert facts["readings"]["congestion"]["wanted"] == "nonesuch"
