"""Lists named sets of values that a job starts from; its own file, environment and flags override them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_TINY: Final = """\
name = "tiny"
rounds = 3
batch = 2

[model]
layers = 1
width = 32
heads = 2
context = 32

[data]
limit = 400000

[schedule]
warmup = 2

[sync]
steps = 3
topk = 64
chunk = 512

[network]
providers = 2
verifiers = 1
hidden = 0

[evaluate]
every = 1
tokens = 1024
final_tokens = 2048
"""

PRESETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "local": "",  # the defaults of job.spec are this preset
        "tiny": _TINY,
    }
)
