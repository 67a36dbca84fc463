"""A build of PyTorch is chosen for the graphics cards of a computer, and pip's command for it.

All members of a job must compute alike, so one version is installed: that of `constraints.txt`. A build for GPUs
trains on the CPU as well; it takes gigabytes, which is why a computer without a card gets the small one.
"""

from __future__ import annotations

from typing import Final

import msgspec

VERSION: Final = "2.13.0"
AUTO: Final = "auto"
CPU: Final = "cpu"
CUDA: Final = "cuda"
ROCM: Final = "rocm"
BUILDS: Final = (CPU, CUDA, ROCM)

# Where PyTorch's own project keeps builds that the usual index does not have. What is on the usual index is the CUDA
# build for Linux and the CPU build for macOS.
_INDEX: Final = {CPU: "https://download.pytorch.org/whl/cpu", ROCM: "https://download.pytorch.org/whl/rocm7.2"}


class GraphicsCards(msgspec.Struct, frozen=True):
    """Whose cards this computer has, as their drivers' own programs answer."""

    nvidia: bool = False
    amd: bool = False


def build_for(cards: GraphicsCards) -> str:
    """The build that uses these cards."""
    return CUDA if cards.nvidia else ROCM if cards.amd else CPU


def arguments(build: str, system: str, index: str = "", *, again: bool = False) -> list[str]:
    """What pip is told; `system` as of platform.system, `index` in place of the build's own, `again`: over a build
    that is there.
    """
    words = ["install", f"torch=={VERSION}"]
    found = index or (_INDEX.get(build, "") if system == "Linux" else "")
    if found:
        words += ["--index-url", found]
    return [*words, "--force-reinstall"] if again else words
