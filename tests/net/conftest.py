"""Makes `net_relays` importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
helpers = ("net_relays", "net_groups", "net_tolls")
# The tests of attacks use them, too.
pytest.register_assert_rewrite(*(each for each in helpers if each not in sys.modules))
