"""Kernels for tensors without numbers are there for whoever needs them."""

from __future__ import annotations

import subprocess
import sys

SOURCE = """
import torch
from torch import nn

def build():
    empty = torch.empty(3, device="meta")
    return nn.Linear(len(torch.where(empty > 0, empty, empty)), 1)
"""

PROGRAM = f"""
import sys
from farflung.train import meta_kernels
meta_kernels.leave_out()
import torch
left_out = type(sys.modules[meta_kernels.NAME])
try:
    torch.where(*[torch.empty(3, dtype=torch.bool, device="meta")] * 3)
except NotImplementedError:
    pass
else:
    sys.exit("nothing was left out")
from farflung.train import user_module
user_module.build("model.py:build", {SOURCE.encode()!r})
assert torch._meta_registrations is sys.modules[meta_kernels.NAME]
assert not isinstance(torch._meta_registrations, left_out)
"""


def test_a_users_module_finds_the_kernels_that_a_worker_left_out() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
