from pathlib import Path

import pytest

from farflung.core.errors import UsageError
from farflung.net.monthly_quota import GIGABYTE
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.bandwidth_limits import BandwidthLimits


def written(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "farflung").mkdir()
    (tmp_path / "farflung" / "network.toml").write_text(text)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_without_a_file_nothing_is_bounded(tmp_path: Path) -> None:
    assert bandwidth_limits.read_bandwidth_limits({"XDG_CONFIG_HOME": str(tmp_path)}) == BandwidthLimits()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    environment = written(tmp_path, "[network]\nup_mbit = 10\nmonth_gb = 0.5\n")
    assert bandwidth_limits.read_bandwidth_limits(environment) == BandwidthLimits(10, 0, 0.5)
    assert bandwidth_limits.read_bandwidth_limits({**environment, "FARFLUNG_UP_MBIT": "2.5"}) == BandwidthLimits(
        2.5, 0, 0.5
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[network]\nup_mbits = 10\n", "did you mean up_mbit"),
        ("[network]\nup_mbit = -1\n", "is not a number"),
        ("[network]\nup_mbit = true\n", "is not a number"),
        ("[network]\nup_mbit = nan\n", "is not a number"),
        ("[network]\ndown_mbit = [1]\n", "is not a number"),
        ("[line]\nup_mbit = 1\n", "one table"),
        ("network = 5\n", "one table"),
        ("[network\n", ""),
    ],
)
def test_what_is_no_bound_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        bandwidth_limits.read_bandwidth_limits(written(tmp_path, text))
    assert caught.value.code == "FF-APP-198"
    assert cause in caught.value.cause


def test_a_relative_folder_in_the_environment_is_not_followed() -> None:
    assert bandwidth_limits.config_file({"XDG_CONFIG_HOME": "here"}).is_absolute()


def test_a_months_volume_is_kept_in_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert bandwidth_limits.line_pacer().allowance is None
    monkeypatch.setenv("FARFLUNG_MONTH_GB", "2")
    monkeypatch.setenv("FARFLUNG_UP_MBIT", "8")
    made = bandwidth_limits.line_pacer()
    assert made.allowance is not None
    assert made.allowance.path == tmp_path / "farflung" / "month.book"
    assert made.allowance.limit == 2 * GIGABYTE
    assert made.rate <= 1_000_000


def test_the_lan_is_looked_at_unless_the_owner_says_no(tmp_path: Path) -> None:
    environment = written(tmp_path, "[network]\nlan = false\nup_mbit = 3\n")
    assert bandwidth_limits.read_bandwidth_limits({"XDG_CONFIG_HOME": str(tmp_path / "none")}).lan
    assert bandwidth_limits.read_bandwidth_limits(environment) == BandwidthLimits(up_mbit=3, lan=False)
    assert bandwidth_limits.read_bandwidth_limits({**environment, "FARFLUNG_LAN": "1"}).lan


@pytest.mark.parametrize("value", ["2", '"no"', "[true]", "0.5"])
def test_a_switch_is_true_or_false(tmp_path: Path, value: str) -> None:
    with pytest.raises(UsageError, match=r"network\.toml: lan") as caught:
        bandwidth_limits.read_bandwidth_limits(written(tmp_path, f"[network]\nlan = {value}\n"))
    assert (caught.value.code, "neither true nor false" in caught.value.cause) == ("FF-APP-198", True)
