"""A stranger's model file: nothing is built by sizes that it only claims, and nothing it says is shown unchecked.

A model of somebody's own is a program: it runs in a process with a sandbox, and what that process says is looked at.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from farflung.core import limits
from farflung.core.crypto import NS_OBJECT, digest, local_key
from farflung.core.errors import FarflungError, RunError, UsageError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import JobSpec, JobTerms, ModelSpec
from farflung.local.model import load
from farflung.local.model.text_generation import WORDS, ask
from farflung.train import inference
from farflung.train import model_file as train_model_file
from farflung.train.inference_messages import GenerateReply, GenerateRequest
from farflung.train.public_state import PublicState
from farflung.train.token_sampler import SamplingOptions, draw

MODEL = ModelSpec(layers=1, width=8, heads=2, context=16)


def terms(model: ModelSpec = MODEL, source: bytes = b"") -> JobTerms:
    layout = TensorLayout.of(gpt_shapes(model) if model.kind == "gpt" else {"table.weight": (256, 256)})
    module = digest(NS_OBJECT, source) if source else ZERO_HASH
    return JobTerms(
        JobSpec(name="small", model=model), ZERO_HASH, module, layout, local_key(1, "r", 0).public, ZERO_HASH
    )


def model_file(of: JobTerms) -> bytes:
    return train_model_file.write(of, PublicState(5, np.zeros(of.layout.size, np.float32)))


GOOD = json.loads(train_model_file.text(train_model_file.of(terms(), 5)))
OWN = json.loads(
    train_model_file.text(train_model_file.of(terms(ModelSpec(kind="module", module="m.py:build"), b"x"), 5))
)


def file_of(said: object, tensors: dict[str, np.ndarray] | None = None, extra: str = "") -> bytes:
    """A file with this card, by hand, so that its head may say anything."""
    tensors = {} if tensors is None else tensors
    places, body = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        places[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps({"__metadata__": {"farflung": json.dumps(said)}, **places})
    head = (text[:-1] + extra + "}").encode()
    return len(head).to_bytes(8, "little") + head + body


def wanted() -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in gpt_shapes(MODEL).items()}


def test_the_file_that_the_others_differ_from_is_good(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(file_of(GOOD, wanted()))
    assert load.open_model(str(tmp_path)).card.name == "small"


def test_a_card_that_no_job_can_have_is_no_card(subtests: pytest.Subtests) -> None:
    for said in [
        GOOD | {"layers": 10**9},
        GOOD | {"layers": 1 << 70},
        GOOD | {"vocabulary": 1 << 31},
        GOOD | {"context": 0},
        GOOD | {"context": -5},
        GOOD | {"width": 1 << 16, "layers": 1024},
        GOOD | {"heads": 3},
        GOOD | {"rounds": -1},
        GOOD | {"rounds": 1 << 40},
        GOOD | {"job": "../../etc/passwd"},
        GOOD | {"job": "AB" * 32},
        GOOD | {"name": "a\n# b"},
        GOOD | {"name": "\x1b[31m"},
        GOOD | {"name": "x" * 65},
        GOOD | {"name": ""},
        GOOD | {"module": "m.py:build"},
        GOOD | {"source": "ab" * 32},
        OWN | {"module": "m.py:build`<script>"},
        OWN | {"module": "m`.py:build"},
        OWN | {"module": "<b>.py:build"},
        OWN | {"module": "/home/bob/m.py:build"},
        OWN | {"module": "x" * 300 + ".py:build"},
        OWN | {"source": "ab"},
        OWN | {"source": "\x1b" * 64},
        [],
        None,
        7,
    ]:
        with subtests.test(said=said):
            with pytest.raises(UsageError, match="FF-TRAIN-100") as caught:
                train_model_file.read(file_of(said, wanted()))
            assert all(line.isprintable() and len(line) < 400 for line in caught.value.lines())


def test_a_head_that_does_not_fit_its_file_is_refused(subtests: pytest.Subtests) -> None:
    for extra in [
        ',"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}',
        ',"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}',
        ',"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}',
        ',"x":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999]}',
        ',"x":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551615,3]}',
        ',"x":{"dtype":"O","shape":[0],"data_offsets":[0,0]}',
        ',"x":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]}',
        ',"x":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}',
        ',"x":7',
        ',"__metadata__":7',
        ',"__metadata__":{"farflung":7}',
        ',"' + "x" * 100_000 + '":[]',
    ]:
        with subtests.test(extra=extra):
            with pytest.raises(FarflungError, match=r"FF-TRAIN-10[012]"):
                train_model_file.flat(*card_and_layout(file_of(GOOD, extra=extra)))


def test_a_head_of_very_many_tensors_is_not_read_on() -> None:
    empty = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    extra = "".join(f',"{i}":{empty}' for i in range(limits.TENSORS + 1))
    with pytest.raises(UsageError, match="FF-TRAIN-100"):
        train_model_file.read(file_of(GOOD, extra=extra))


def card_and_layout(data: bytes) -> tuple[train_model_file.ModelFileHeader, TensorLayout, object]:
    said, tensors = train_model_file.read(data)
    return said, train_model_file.gpt_layout(said), tensors


def test_a_pickle_and_a_torch_file_are_no_model_files(tmp_path: Path) -> None:
    for name, write in (("pickle", lambda path: path.write_bytes(pickle.dumps([1] * 99))),
                        ("torch", lambda path: torch.save({"a": torch.zeros(9)}, path))):  # fmt: skip
        write(tmp_path / name)
        with pytest.raises(UsageError, match="FF-TRAIN-100"):
            load.open_model(str(tmp_path / name))


@pytest.mark.parametrize("change", ["missing", "extra", "turned", "renamed", "large"])
def test_other_tensors_than_the_card_claims_are_refused_before_anything_is_built(tmp_path: Path, change: str) -> None:
    said, tensors = dict(GOOD), wanted()
    match change:
        case "missing":
            del tensors["norm.bias"]
        case "extra":
            tensors["other"] = np.zeros(3, np.float32)
        case "turned":
            tensors["embed.weight"] = tensors["embed.weight"].T.copy()
        case "renamed":
            tensors["\u202eevil\x1b"] = tensors.pop("norm.bias")
        case "large":  # a quarter of a terabyte, if it were believed
            said |= {"layers": 1000, "width": 2304, "heads": 2}
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(said, tensors))
    tracemalloc.start()
    with pytest.raises(FarflungError, match="FF-TRAIN-102") as caught:
        load.open_model(str(path))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 * limits.MIB
    assert all(line.isprintable() for line in caught.value.lines())
    with pytest.raises(FarflungError, match="FF-TRAIN-102"):
        list(inference.answer(GenerateRequest(path.read_bytes(), b"", (1,), 3, 1.0, 0, 1.0, 1)))


def test_of_a_file_of_any_size_no_more_than_its_head_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    os.truncate(path, 1 << 42)
    with pytest.raises(UsageError, match="FF-TRAIN-100"):
        load.open_model(str(path))


def test_weights_that_are_no_numbers_are_told_and_not_sampled() -> None:
    tensors = wanted()
    tensors["embed.weight"][:] = np.nan
    with pytest.raises(UsageError, match="FF-TRAIN-104"):
        list(inference.answer(GenerateRequest(file_of(GOOD, tensors), b"", (1,), 3, 1.0, 0, 1.0, 1)))


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-200])
def test_a_temperature_next_to_zero_takes_the_likeliest(temperature: float) -> None:
    scores = torch.tensor([-9e37, 2e37, 3e38, -3e38], dtype=torch.float64)
    options = SamplingOptions(temperature=temperature, top_p=0.9)
    assert draw(scores, options, torch.Generator().manual_seed(1)) == 2


ABSURD = ({"top_k": 1 << 31}, {"top_k": 1 << 200}, {"temperature": math.nan}, {"top_p": math.nan}, {"top_p": math.inf})


@pytest.mark.parametrize("options", [SamplingOptions(**each) for each in ABSURD])
def test_options_without_a_meaning_are_refused(options: SamplingOptions) -> None:
    with pytest.raises(UsageError, match="FF-TRAIN-103"):
        options.check()


def test_a_model_file_names_no_folder_of_its_maker() -> None:
    model = ModelSpec(kind="module", module="/home/bob/secret project/m.py:build")
    data = model_file(terms(model, b"x"))
    assert b"bob" not in data
    assert train_model_file.read(data)[0].module == "m.py:build"


PROGRAM = """
import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)

    def logits(self, x_BT):
        {logits}
        return self.table(x_BT)

    def forward(self, x_BT, y_BT):
        return nn.functional.cross_entropy(self.logits(x_BT).flatten(0, 1), y_BT.flatten())


def build():
    {build}
    return Letters()
"""


def own(tmp_path: Path, *, logits: str = "pass", build: str = "pass") -> Path:
    source = PROGRAM.format(logits=logits, build=build).encode()
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "module.py").write_bytes(source)
    model = ModelSpec(kind="module", module="m.py:build", context=16)
    (folder / "model.safetensors").write_bytes(model_file(terms(model, source)))
    return folder


def asked(folder: Path) -> list[int]:
    found = load.open_model(str(folder))
    request = GenerateRequest(found.data, found.source, (1,), 3, 1.0, 0, 1.0, 1)
    return [answer.token for answer in ask(found, request) if isinstance(answer, GenerateReply)]


@pytest.mark.slow
def test_what_a_program_prints_is_not_taken_for_its_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path, build="import os; print('\\x1b[2J' * 9, flush=True); os.write(1, b'\\x1b[31m' * 99)")
    assert len(asked(folder)) == 3
    assert "\x1b" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_what_a_program_says_of_its_failure_is_cut_and_printable(tmp_path: Path) -> None:
    folder = own(tmp_path, build="raise ValueError('\\x1b[31m' + 'x' * 1_000_000)")
    with pytest.raises(RunError, match="FF-TRAIN-052") as caught:
        asked(folder)
    assert len(caught.value.cause) <= WORDS
    assert all(line.isprintable() for line in caught.value.lines())


@pytest.mark.slow
def test_a_program_that_answers_by_itself_cannot_choose_the_words_or_the_code(tmp_path: Path) -> None:
    forged = (
        "import os, sys; from farflung.core.codec import encode;"
        " from farflung.train.worker_messages import WorkerFailure;"
        " data = encode(WorkerFailure('\\x1b]0;x', 'm' * 9_000, 'c' * 9_000, 'h' * 9_000));"
        " os.write(int(sys.argv[1]), len(data).to_bytes(8, 'little') + data)"
    )
    with pytest.raises(RunError) as caught:
        asked(own(tmp_path, build=forged))
    assert caught.value.code == "FF-TRAIN-099"
    assert len(caught.value.message) == len(caught.value.cause) == len(caught.value.hint) == WORDS


@pytest.mark.slow
def test_a_program_that_ends_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="FF-APP-167"):
        asked(own(tmp_path, logits="import os; os._exit(3)"))


def test_a_source_of_another_hash_does_not_run(tmp_path: Path) -> None:
    folder = own(tmp_path)
    with (folder / "module.py").open("a") as file:
        file.write("\nopen('/tmp/never', 'w')\n")
    with pytest.raises(FarflungError, match="FF-APP-165"):
        load.open_model(str(folder))


ENDLESS = "\n        while True: pass"
# Says when the command begins, and then does what a test wants to happen inside of it.
BEGUN = "import sys\nfrom farflung.app.cli.main import main\n{also}\nsys.stderr.write('begun\\n')\nmain()"


def sampling(folder: Path, also: str = "", tokens: int = 3) -> subprocess.Popen[bytes]:
    """A command that does not end by itself; it has begun."""
    words = ["sample", str(folder), "--tokens", str(tokens), "--prompt", "ready"]
    command = [sys.executable, "-c", BEGUN.format(also=also), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)
    assert process.stderr is not None
    assert process.stderr.readline() == b"begun\n"
    return process


def ends_as_interrupted(process: subprocess.Popen[bytes]) -> None:
    """By Ctrl-C's exit code, without a word."""
    try:
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert b"Traceback" not in said


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The first that it has, once it has one."""
    while not (found := psutil.Process(process.pid).children()):
        assert process.poll() is None
    return found


def all_end(processes: list[psutil.Process]) -> None:
    """Within a minute, or are waited for by nobody."""
    deadline = time.monotonic() + 60
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, one
                time.sleep(0.02)


@pytest.mark.whole
def test_ctrl_c_ends_a_program_that_never_returns(tmp_path: Path) -> None:
    folder = own(tmp_path, logits=ENDLESS)
    process = sampling(folder)
    started = children(process)
    process.send_signal(signal.SIGINT)
    ends_as_interrupted(process)
    all_end(started)


LOST = """
import os, signal, threading, time
from farflung.local.model import text_generation
start = text_generation.start_worker
def interrupted(*given, **named):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        pass
    return start(*given, **named)
text_generation.start_worker = interrupted
"""
ELSEWHERE = """
import signal, threading, time
from farflung.local.model import text_generation
write = text_generation.WorkerChannel.write
def interrupt():
    time.sleep(1)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
def written(self, data):
    write(self, data)
    threading.Thread(target=interrupt, daemon=True).start()
text_generation.WorkerChannel.write = written
"""


@pytest.mark.whole
@pytest.mark.parametrize("also", [LOST, ELSEWHERE], ids=["in a library", "in another thread"])
def test_an_interrupt_that_nobody_hears_of_ends_the_command_all_the_same(tmp_path: Path, also: str) -> None:
    folder = own(tmp_path, logits=ENDLESS)
    ends_as_interrupted(sampling(folder, also))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("moments", [(0, 3), pytest.param(range(12), marks=pytest.mark.soak)])
def test_ctrl_c_ends_the_command_in_any_moment_of_its_start(tmp_path: Path, moments: Iterable[int]) -> None:
    folder, ours = own(tmp_path, logits=ENDLESS), tmp_path / "ours"
    ours.mkdir()
    (ours / "model.safetensors").write_bytes(file_of(GOOD, wanted()))
    draw, started = random.Random(6), []
    for moment in moments:
        process = sampling(ours if moment % 4 == 3 else folder, tokens=1 << 20)
        if moment % 2:
            time.sleep(draw.uniform(0, 2))
        else:  # just when its sandbox starts
            started += children(process)
            time.sleep(draw.uniform(0, 0.15))
        if process.poll() is None:
            started += psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        ends_as_interrupted(process)
    all_end(started)
