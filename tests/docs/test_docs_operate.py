"""The pages for operators: one a reader, all in one index, and every way to be reached from outside is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operate.md"
PAGES = sorted((ROOT / "docs" / "operate").glob("*.md"))
LISTENS = re.compile(r"ListenConfig\([^)]|allow_remote=(?!False)|start_server\(|\.listen\(")
LOOPBACK_ONLY = {  # but for what they are told by those below
    "host/io/doctor_sockets.py",
    "local/jobs/preflight_checks.py",
    "net/io/tcp_listener.py",
    "peers/ledger_http/server.py",
}
NAMED = {  # what opens a port that other computers may reach → how the page calls it
    "app/netcheck/check.py": "`--listen`",
    "net/io/hole_punch.py": "direct path through two routers",
    "peers/node/lan_discovery.py": "on its LAN",
    "peers/relay/main.py": "`farflung relay`",
    "peers/requester/main.py": "a requester",
    "peers/validator/http_readers.py": "`farflung ledger serve`",
    "peers/validator/service.py": "a validator",
    "sync/mesh_group.py": "`allow_remote=True`",
}


def test_all_that_listens_beyond_this_computer_is_on_the_page() -> None:
    package = ROOT / "src" / "farflung"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if LISTENS.search(re.sub(r"^\s*(?:async )?def .*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    }
    assert found - LOOPBACK_ONLY == set(NAMED)
    told = PAGE.read_text(encoding="utf-8").partition("What can listen beyond this computer")[2].partition("\n#")[0]
    assert [words for words in NAMED.values() if words not in told] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_for_operators_is_in_the_index_and_has_one_reader(page: Path) -> None:
    """A24: one page of 6,700 words was for everybody."""
    assert f"](operate/{page.name})" in PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    assert len(page.read_text(encoding="utf-8").split()) < 2000
