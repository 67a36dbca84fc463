"""Makes the network of `test_sim_rounds` importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "core"))
pytest.register_assert_rewrite("sim_net", "sim_net_story")
