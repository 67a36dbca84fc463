"""One Chromium for all tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Ends with the last test of its file: its loop runs in this thread, where whoever comes next starts one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: farflung[browser]")
    path = os.environ.get("FARFLUNG_CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("there is no Chromium: name one in FARFLUNG_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go, for people to look at: FARFLUNG_SCREENSHOTS, or a folder of this test run."""
    named = os.environ.get("FARFLUNG_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
