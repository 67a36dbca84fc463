"""Makes `app_trees` importable: the networks are those of tests/app."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "app"))
pytest.register_assert_rewrite("app_trees")
