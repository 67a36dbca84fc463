"""Names this version of farflung, which every file that it writes names in turn (core.file_header)."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"

# No package index has farflung: what somebody else puts there under this name must not be what a hint installs.
INSTALL: Final = "pip install -c constraints.txt ."  # in its source folder
UPGRADE: Final = f"git pull in farflung's source folder; {INSTALL}"
