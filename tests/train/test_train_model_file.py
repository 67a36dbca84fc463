from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import DataSpec, JobSpec, JobTerms, ModelSpec
from farflung.train import model_file
from farflung.train.public_state import PublicState

MODEL = ModelSpec(layers=2, width=8, heads=2, context=16)


def terms(model=MODEL, data="words.txt"):
    layout = TensorLayout.of(gpt_shapes(model) if model.kind == "gpt" else {"b": (3, 2), "a": (4,)})
    spec = JobSpec(name="small", model=model, data=DataSpec(path=data))
    return JobTerms(spec, ZERO_HASH, ZERO_HASH, layout, local_key(1, "r", 0).public, ZERO_HASH)


def state(of, rounds=5):
    weights = np.random.default_rng(2).standard_normal(of.layout.size).astype(np.float32)
    return PublicState(rounds, weights)


def test_the_file_says_all_that_is_needed_to_use_it_and_gives_the_weights_back():
    job = terms()
    public = state(job)
    said, tensors = model_file.read(model_file.write(job, public))
    assert said.model == MODEL
    assert (said.tokens, said.job, said.rounds, said.name) == ("bytes", job.id.hex(), 5, "small")
    assert model_file.flat(said, model_file.gpt_layout(said), tensors).tobytes() == public.params.tobytes()


def test_the_card_is_one_key_of_canonical_json():
    data = model_file.write(terms(), state(terms()))
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert list(head["__metadata__"]) == ["farflung"]
    said = head["__metadata__"]["farflung"]
    assert said == json.dumps(json.loads(said), sort_keys=True, separators=(",", ":"))


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from test_train_model_file import model_file, state, terms
print(model_file.write(terms(), state(terms())).hex())
"""


@pytest.mark.slow
def test_the_same_bytes_come_out_in_every_process():
    files = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)]
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        files.add(ended.stdout)
    assert files == {model_file.write(terms(), state(terms())).hex() + "\n"}


def test_another_job_or_another_number_of_rounds_is_another_file():
    job = terms()
    files = {
        model_file.write(job, state(job)),
        model_file.write(job, state(job, rounds=6)),
        model_file.write(terms(data="other.txt"), state(job)),
    }
    assert len(files) == 3


def test_a_model_of_the_users_own_names_its_function_and_its_source():
    model = ModelSpec(kind="module", module="model.py:build", context=9)
    said, _ = model_file.read(model_file.write(terms(model), state(terms(model))))
    assert (said.model, said.source, said.layers) == (model, ZERO_HASH.hex(), 0)


@pytest.mark.parametrize("path", ["tokens.npy", "tokens.safetensors"])
def test_a_model_of_numbers_says_so(path):
    assert model_file.of(terms(data=path), 1).tokens == "ids"


def with_card(said):
    job = terms()
    tensors = dict(job.layout.unflatten(state(job).params))
    return safetensors.numpy.save(tensors, None if said is None else {"farflung": said})


GOOD = json.loads(model_file.text(model_file.of(terms(), 5)))


def test_what_is_no_model_file_is_refused(subtests):
    for data, code in [
        (b"", "FF-TRAIN-100"),
        (b"%PDF-1.7 and so on, and on", "FF-TRAIN-100"),
        (bytes(8) + b"x", "FF-TRAIN-100"),
        ((2).to_bytes(8, "little") + b"[]", "FF-TRAIN-100"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "FF-TRAIN-100"),
        (with_card(None), "FF-TRAIN-101"),
        (with_card("{}"), "FF-TRAIN-100"),
        (with_card("[" * 5000), "FF-TRAIN-100"),
        (with_card(json.dumps(GOOD | {"format": 2})), "FF-CORE-095"),
        (with_card(json.dumps(GOOD | {"heads": 0})), "FF-TRAIN-100"),
        (with_card(json.dumps(GOOD | {"width": 1 << 40})), "FF-TRAIN-100"),
        (with_card(json.dumps(GOOD | {"kind": "llama"})), "FF-TRAIN-100"),
        (with_card(json.dumps(GOOD))[:-4], "FF-TRAIN-100"),
    ]:
        with subtests.test(data=data, code=code):
            with pytest.raises(FarflungError) as caught:
                model_file.read(data)
            assert caught.value.code == code
            assert caught.value.hint


def test_tensors_of_another_size_than_the_card_says_are_refused():
    said, tensors = model_file.read(with_card(json.dumps(GOOD | {"width": 16})))
    with pytest.raises(FarflungError) as caught:
        model_file.flat(said, model_file.gpt_layout(said), tensors)
    assert caught.value.code == "FF-TRAIN-102"


@pytest.mark.parametrize("name", ["plain", 'quo"ted\\', "tab\tand ü \x7f \u2028"])
def test_the_file_is_what_safetensors_writes_and_its_tensors_what_it_reads(name):
    """It is written and read piece by piece, and the library holds all of it."""
    job = terms(ModelSpec(kind="module", context=8, vocabulary=9, module="m.py:build"))
    job = msgspec.structs.replace(job, layout=TensorLayout.of({name: (3, 2), "a": (4,), "b": ()}))
    public = state(job)
    data = model_file.write(job, public)
    card = model_file.text(model_file.of(job, public.round))
    assert data == safetensors.numpy.save(dict(job.layout.unflatten(public.params)), {"farflung": card})
    theirs, ours = safetensors.numpy.load(data), model_file.tensors_of(data)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[each], theirs[each]) for each in ours)
