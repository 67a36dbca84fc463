"""In a real kernel: the example notebook from its first cell to its last, and its stop button."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farflung

pytestmark = [pytest.mark.extra(name="notebook"), pytest.mark.whole, pytest.mark.timeout(400)]

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
LIMIT_SECONDS = 90


@pytest.fixture(autouse=True)
def installed() -> None:
    """What a notebook needs, which is not imported while tests are collected."""
    for name in ("pandas", "ipykernel", "nbclient"):
        pytest.importorskip(name, reason="pip install 'farflung[notebook]'")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings of a small run, for kernels started from here; its runs go below the folder."""
    for name in [name for name in os.environ if name.startswith("FARFLUNG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PRESET", "tiny")
    monkeypatch.setenv("FARFLUNG_ROUNDS", "2")
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    yield tmp_path
    shutil.rmtree(tmp_path / "runtime", ignore_errors=True)


def outputs(notebook: Any, cell: str) -> list[dict[str, str]]:
    """What a cell showed, by kind of content; text that it printed under `stdout` and `stderr`."""
    (found,) = [c for c in notebook.cells if c["id"] == cell]
    shown: list[dict[str, str]] = []
    for output in found["outputs"]:
        assert output["output_type"] != "error", output
        shown.append({output["name"]: output["text"]} if output["output_type"] == "stream" else output["data"])
    return shown


def test_the_example_notebook_runs_from_the_first_cell_to_the_last(small: Path) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    import nbclient

    client = nbclient.NotebookClient(
        notebook,
        timeout=LIMIT_SECONDS,
        kernel_name="python3",
        coalesce_streams=True,  # a line may come in two pieces
        resources={"metadata": {"path": str(small)}},
    )
    client.execute()

    (plan,) = outputs(notebook, "plan")
    assert "sync traffic" in plan["text/html"]
    (live,) = outputs(notebook, "run")  # one block, kept up to date; nothing else is said
    assert "2/2 rounds" in live["text/plain"]
    assert "Result" in live["text/html"]
    (figures,) = outputs(notebook, "figures")
    assert "<svg" in figures["text/html"]
    (metrics,) = outputs(notebook, "metrics")
    assert "heldout_loss" in metrics["text/html"]
    (sample,) = outputs(notebook, "sample")
    assert sample["stdout"].startswith("def ")
    (model,) = outputs(notebook, "model")
    assert "parameters" in model["stdout"]
    run = farflung.load()
    (proof,) = outputs(notebook, "verify")
    assert run.result.model_hash in proof["text/plain"]
    assert run.state == "finished"


class Kernel:
    """A kernel that is spoken to as a notebook does."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import AsyncKernelManager

        self.manager = AsyncKernelManager(kernel_name="python3")
        self.folder = folder
        self.client: Any = None

    async def __aenter__(self) -> Kernel:
        await self.manager.start_kernel(cwd=str(self.folder))
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=LIMIT_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)

    async def run(self, code: str, interrupt_at: str = "") -> tuple[dict[str, Any], str]:
        """Runs a cell, pressing stop once when it has said `interrupt_at`: how it ended, and all that it said."""
        asked, said, is_idle = self.client.execute(code), "", False
        deadline = time.monotonic() + LIMIT_SECONDS
        while not is_idle:
            message = await self.client.get_iopub_msg(timeout=deadline - time.monotonic())
            content, kind = message["content"], message["header"]["msg_type"]
            is_ours = message["parent_header"].get("msg_id") == asked
            is_idle = is_ours and kind == "status" and content["execution_state"] == "idle"
            said += content.get("text", "") if kind == "stream" else ""
            if interrupt_at and interrupt_at in said:
                interrupt_at = ""
                await self.manager.interrupt_kernel()
        while True:  # replies to what was asked while the kernel started come first
            reply = await self.client.get_shell_msg(timeout=LIMIT_SECONDS)
            if reply["parent_header"].get("msg_id") == asked:
                return reply["content"], said


GO = """
import farflung, psutil
run = farflung.run(preset="tiny", set={"rounds": 500}, display=False, callbacks=[lambda e: print(type(e).__name__)])
"""
AFTER = """
run = farflung.load()
print(run.state, 1 <= run.result.rounds < 500, run.result.sum, len(psutil.Process().children(recursive=True)))
"""


@pytest.mark.parametrize("cell", [GO, "import asyncio\nawait asyncio.sleep(0)" + GO])
def test_the_stop_button_finishes_the_round_and_settles(cell: str, small: Path) -> None:
    async def session() -> tuple[dict[str, Any], dict[str, Any], str]:
        async with Kernel(small) as kernel:
            stopped, _ = await kernel.run(cell, interrupt_at="RoundEndEvent")
            after, said = await kernel.run(AFTER)
            return stopped, after, said

    stopped, after, said = asyncio.run(session())
    assert (stopped["status"], stopped["ename"]) == ("error", "RunStoppedError")
    assert "FF-APP-132" in stopped["evalue"]
    assert after["status"] == "ok", after
    assert said.split() == ["finished", "True", "0", "0"]
