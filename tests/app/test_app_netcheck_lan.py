"""What a check says of the LAN when the owner's file says nothing that can be read."""

from pathlib import Path

import pytest

from farflung.app.netcheck import check


def test_a_file_that_cannot_be_read_is_named_and_ends_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "farflung").mkdir()
    (tmp_path / "farflung" / "network.toml").write_text("[network]\nlan = 7\n")
    assert "network.toml" in check._lan()
    assert "neither true nor false" in check._lan()
