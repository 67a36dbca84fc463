"""Names this version of farflung, which every file that it writes names in turn (core.file_header)."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
