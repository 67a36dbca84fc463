"""docs/protocol/factors.md is the format: its vectors hold here, and under other kernels of the linear algebra."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farflung.compress.payload import HEADER_BYTES, ContributionKey
from farflung.compress.powersgd import LowRankCodec
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout


def test_the_vectors_of_the_document_hold():
    text = (Path(__file__).parents[2] / "docs/protocol/factors.md").read_text()
    found = re.search(r"```golden\n(.*?)```", text, re.S)
    wanted = dict(line.split(" = ") for line in found.group(1).strip().splitlines())
    layout, codec = TensorLayout.of({"bias": (3,), "weight": (3, 5)}), LowRankCodec(1, 1.0)
    values = np.array(
        [0.5, -0.25, 0.125, 0.25, -0.75, 0.125, 0.125, -1, 0, 0.5, -0.125, 1.5, -0.5, 0.5, 0.25, -0.375, 0, 0.125],
        np.float32,
    )
    places = [ContributionKey(r, r % 2, Hash(b"\x11" * 32), PeerId(b"\x22" * 32)) for r in (6, 7)]
    query = codec.query(layout, 1)
    unsent, one = codec.starting(query).encode(None, values, layout, places[0])
    basis = codec.basis(codec.decode(one, layout, places[0]), layout)
    residual, two = codec.starting(basis).encode(unsent, np.zeros_like(values), layout, places[1])
    change, following = codec.change(basis, codec.decode(two, layout, places[1]), layout)
    vectors = {"query": query, "basis": basis, "residual": residual, "change": change, "next": following}
    made = {name: vector.astype("<f4").tobytes().hex() for name, vector in vectors.items()}
    for phase, payload in enumerate((one, two)):
        made[f"header{phase}"] = payload[:HEADER_BYTES].hex()
        made[f"body{phase}"] = payload[HEADER_BYTES:].hex()
    assert made == wanted


BOTH_PHASES = """
import hashlib, numpy as np
from farflung.compress.powersgd import LowRankCodec
from farflung.compress.payload import ContributionKey
from farflung.core.tensor_layout import TensorLayout
layout, codec = TensorLayout.of({"w": (300, 700)}), LowRankCodec(4, 1.0)
values = (((np.arange(layout.size) * 7919) % 100003 - 50000) / 7e6).astype(np.float32)
places = [ContributionKey(r, r % 2, bytes(32), bytes(32)) for r in (6, 7)]
unsent, one = codec.starting(codec.query(layout, 1)).encode(None, values, layout, places[0])
basis = codec.basis(codec.decode(one, layout, places[0]), layout)
residual, two = codec.starting(basis).encode(unsent, 0 * values, layout, places[1])
change, query = codec.change(basis, codec.decode(two, layout, places[1]), layout)
print(hashlib.sha256(one + two + residual.tobytes() + change.tobytes() + query.tobytes()).hexdigest())
"""


@pytest.mark.parametrize("kernels", ["", "Prescott"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_round_has_the_same_bits_under_other_kernels_and_threads_of_the_library(kernels, threads):
    """OpenBLAS takes another code path for each kind of processor: an ordinary product differs between these two."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": threads}
    if kernels:
        env["OPENBLAS_CORETYPE"] = kernels
    done = subprocess.run([sys.executable, "-c", BOTH_PHASES], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PINNED


PINNED = "dc45baf4c8c9cc594e6d45772aee0538263622418f0b2029659c581d529d1823"
