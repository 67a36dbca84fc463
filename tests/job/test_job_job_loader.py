from __future__ import annotations

import contextlib
import json
import math
from typing import Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.errors import SpecError
from farflung.job import job_toml
from farflung.job.job_loader import build, load
from farflung.job.keys import KEYS, SECTIONS, TERM_KEYS, keys, value_of
from farflung.job.methods.registry import METHODS
from farflung.job.methods.sync_method import METHOD
from farflung.job.presets import PRESETS
from farflung.job.spec import JobSpec
from farflung.job.spec_checks import RANGES, check


def refusal(text=None, **more):
    with pytest.raises(SpecError) as caught:
        load(text, **more)
    return caught.value


def with_value(spec, dotted, value):
    return build({**{key: value_of(spec, key) for key in TERM_KEYS}, dotted: value})


def test_nothing_said_gives_the_defaults():
    resolved = load(None)
    assert resolved.spec == JobSpec() == load("").spec
    assert set(resolved.origins) == set(keys())
    assert set(resolved.origins.values()) == {"default"}


def test_flag_beats_environment_beats_file_beats_preset_beats_default():
    said = {
        "flags": {"rounds": "7"},
        "environment": {"FARFLUNG_ROUNDS": "8", "FARFLUNG_SYNC_STEPS": "5", "PATH": "/bin"},
    }
    text = "rounds = 9\nbatch = 3\n\n[sync]\nsteps = 6\n"
    resolved = load(text, preset="tiny", origin_name="my.toml", **said)
    spec, origins = resolved.spec, resolved.origins
    assert (spec.rounds, spec.sync.steps, spec.batch, spec.model.width, spec.seed) == (7, 5, 3, 32, 1)
    assert origins["rounds"] == "flag rounds"
    assert origins["sync.steps"] == "FARFLUNG_SYNC_STEPS"
    assert origins["batch"] == "my.toml line 2"
    assert origins["model.width"] == "preset tiny"
    assert origins["seed"] == "default"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads(preset):
    assert load(None, preset=preset).spec.rounds >= 1


def test_tiny_is_tiny():
    spec = load(None, preset="tiny").spec
    assert (spec.network.providers, spec.rounds, spec.sync.steps, spec.batch) == (2, 3, 3, 2)
    assert (spec.model.layers, spec.model.width, spec.model.heads, spec.model.context) == (1, 32, 2, 32)
    assert (spec.sync.topk, spec.sync.chunk, spec.schedule.warmup, spec.evaluate.every) == (64, 512, 2, 1)


def test_an_unknown_preset_is_refused_with_the_nearest():
    error = refusal(preset="tinny")
    assert error.code == "FF-JOB-005"
    assert '"tiny"' in error.hint


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(subtests):
    for text, where, hint in [
        ("[sync]\n\nstep = 3", "job.toml line 3", '"steps"'),
        ("stepz = 3", "job.toml line 1", '"steps" in [sync]'),
        ("# hello\nsteps = 4", "job.toml line 2", '"steps" in [sync]'),
        ("[sync]\nrounds = 4", "job.toml line 2", '"rounds" at the top level'),
        ("[optimiser]\nlr = 1", "job.toml line 2", "[optimizer]"),
        ("\n[modle]", "job.toml line 2", "[model]"),
        ("sync = {stepz = 4}", "job.toml line 1", '"steps"'),
        ("seed = 1\nsync.stepz = 4", "job.toml line 2", '"steps"'),
        ("[model]\n[model.width2]\na = 1", "job.toml line 2", '"width"'),
        ("'sync.steps' = 4", "job.toml line 1", ""),
        ("'' = 4", "job.toml line 1", ""),
    ]:
        with subtests.test(text=text, where=where, hint=hint):
            error = refusal(text)
            assert error.code == "FF-JOB-001"
            assert error.cause == where
            assert hint in error.hint


def test_unknown_flags_and_variables_are_refused_with_the_nearest_name():
    assert '"rounds"' in refusal(flags={"round": "3"}).hint
    error = refusal(environment={"FARFLUNG_SYNC_STEPZ": "3"})
    assert (error.code, error.hint) == ("FF-JOB-001", "did you mean FARFLUNG_SYNC_STEPS?")
    assert load(None, environment={"FARFLUNG_HOME": "/x", "FARFLUNG_FAILPOINT": "a.write"}).spec == JobSpec()


def test_no_two_keys_share_a_variable():
    assert len({key.variable for key in KEYS.values()}) == len(KEYS)


def test_a_wrong_type_is_refused_with_what_was_expected_and_where(subtests):
    for text, words in [
        ('rounds = "3"', "a whole number, not 3"),
        ("rounds = 3.5", "a whole number"),
        ("rounds = true", "a whole number"),
        ("rounds = [1]", "a whole number"),
        ("[rounds]\na = 1", "a whole number"),
        ("rounds = 2000-01-01", "a whole number"),
        ("budget = 5", "text in quotes"),
        ("[optimizer]\nlr = 'fast'", "a number"),
        ("[optimizer]\nlr = 1" + "0" * 400, "a number"),
        ("[sync]\nnesterov = 1", "true or false"),
        ("[sync]\nmethod = 'delico'", 'one of "dense", "local_sgd", "diloco"'),
        ("model = 3", "model is a section"),
        ("[[sync]]\nsteps = 3", "sync is a section"),
    ]:
        with subtests.test(text=text, words=words):
            error = refusal(text)
            assert error.code == "FF-JOB-002"
            assert words in error.message
            assert error.cause.startswith("job.toml line")
            assert error.hint


def test_wrong_types_come_with_the_change_that_helps():
    assert refusal("budget = 5").hint == 'put it in quotes: budget = "5"'
    assert refusal("[sync]\nmethod = 'delico'").hint == 'did you mean "diloco"?'
    error = refusal(flags={"rounds": "many"})
    assert (error.code, error.cause) == ("FF-JOB-002", "flag rounds")
    assert refusal(environment={"FARFLUNG_SYNC_NESTEROV": "maybe"}).cause == "FARFLUNG_SYNC_NESTEROV"


def test_a_whole_number_is_a_number():
    assert load("[optimizer]\nlr = 1").spec.optimizer.lr == 1.0


def test_text_values_of_flags_are_read_as_their_keys_type():
    flags = {"optimizer.lr": "1e-3", "sync.nesterov": "false", "budget": "2", "sync.method": "diloco"}
    spec = load(None, flags={**flags, "sync.codec": "dense", "sync.value_bits": "8"}).spec
    assert (spec.optimizer.lr, spec.sync.nesterov, spec.budget) == (1e-3, False, "2")
    assert spec.sync.value_bits == 8


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a = 1\n\n= 3", "job.toml line 3"),
        ("rounds = [1", "job.toml"),
        ("rounds = 1\nrounds = 2", "job.toml"),
        ("rounds = '\x00'", "job.toml line 1"),
        ("rounds = " + "[" * 20_000, "job.toml"),
        ("rounds = " + "1" * 5000, "job.toml"),
        ("#" * (limits.SPEC_BYTES + 1), "job.toml"),
    ],
)
def test_bad_toml_is_refused_with_its_line(text, where):
    error = refusal(text)
    assert error.code == "FF-JOB-003"
    assert error.message.startswith(where + " ")


def test_an_impossible_value_is_refused_with_its_key_what_is_allowed_and_its_origin(subtests):
    for key, value in [
        ("rounds", 0),
        ("rounds", -1),
        ("rounds", 1 << 70),
        ("seed", -1),
        ("seed", 1 << 63),
        ("batch", 0),
        ("model.layers", 0),
        ("model.heads", 3),
        ("model.context", 1),
        ("model.vocabulary", 1),
        ("data.heldout", 0.0),
        ("data.heldout", 0.51),
        ("data.path", ""),
        ("data.path", "a\0b"),
        ("optimizer.lr", 0.0),
        ("optimizer.lr", math.nan),
        ("optimizer.lr", math.inf),
        ("optimizer.lr", -1.0),
        ("optimizer.beta1", 1.0),
        ("optimizer.eps", 0.0),
        ("optimizer.clip", -1.0),
        ("schedule.warmup", -1),
        ("schedule.final", 1.5),
        ("sync.steps", 0),
        ("sync.steps", 1 << 20),
        ("sync.topk", 4097),
        ("sync.chunk", 63),
        ("sync.error_decay", -0.1),
        ("sync.outer_lr", 0.0),
        ("sync.outer_momentum", 1.0),
        ("sync.method", "dgc"),
        ("sync.codec", "low_rank"),
        ("sync.outer", "sign"),
        ("network.providers", 1),
        ("network.providers", 65),
        ("network.port", 65536),
        ("evaluate.every", 0),
        ("evaluate.tokens", 63),
        ("evaluate.final_tokens", 63),
        ("budget", "-1"),
        ("budget", "0"),
        ("unit_price", "0.0000000000001"),
        ("unit_price", "0"),
        ("name", ""),
        ("name", "../up"),
        ("name", ".hidden"),
        ("name", "a b"),
        ("model.module", "m.py:build"),
        ("model.kind", "module"),
    ]:
        with subtests.test(key=key, value=value):
            spec = with_value(JobSpec(), key, value)
            with pytest.raises(SpecError) as caught:
                check(spec, dict.fromkeys(KEYS, "flag here"))
            error = caught.value
            assert error.code == "FF-JOB-004"
            assert " = " in error.message
            assert "allowed: " in error.cause
            assert "set by flag here" in error.cause
            assert error.hint


def test_a_refused_value_names_who_said_it():
    error = refusal("[model]\nheads = 3", environment={"FARFLUNG_MODEL_WIDTH": "128"})
    assert error.message == "model.heads = 3 is not possible"
    assert error.cause == "allowed: a divisor of model.width = 128; set by job.toml line 2"


def test_a_model_over_the_bound_of_elements_is_refused():
    assert "parameters" in refusal("[model]\nwidth = 65536\nheads = 1").cause


def test_a_module_of_ones_own_is_possible():
    spec = load('[model]\nkind = "module"\nmodule = "dir/m.py:build"\nheads = 3').spec
    assert spec.model.module == "dir/m.py:build"


def test_a_method_sets_what_is_left_out_and_says_so():
    found = load('[sync]\nmethod = "muloco"\nsteps = 7')
    assert (found.spec.optimizer.name, found.spec.sync.codec, found.spec.sync.steps) == ("muon", "dense", 7)
    assert found.origins["optimizer.name"] == 'default of sync.method = "muloco"'
    assert found.origins["sync.steps"] == "job.toml line 3"
    assert load('[sync]\nmethod = "demo"', preset="tiny").spec.sync.steps == 1  # the preset says 3


def test_the_default_job_is_its_method_with_its_defaults():
    spec = JobSpec()
    for key, value in METHODS[spec.sync.method].defaults.items():
        assert value_of(spec, key) == value, key


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_job_by_its_name_alone(method):
    spec = load(None, flags={"sync.method": method}).spec
    assert spec.sync.steps == 1 or not METHODS[method].is_stepwise


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('method = "diloco"\ncodec = "topk"', "sync.codec"),
        ('method = "demo"\nsteps = 5', "sync.steps"),
        ('method = "demo"\nouter = "sgd"', "sync.outer"),
        ('method = "dgc"\nvalue_bits = 2', "sync.value_bits"),
        ('method = "dgc"\nerror_decay = 0.9', "sync.error_decay"),
        ('method = "powersgd"\nvalue_bits = 8', "sync.value_bits"),
        ('method = "muloco"\ntransform = "dct"', "sync.transform"),
        ('method = "sparse_loco"\ntransform = "dct"\nchunk = 1000', "sync.transform"),
        ('method = "muloco"\n[optimizer]\nname = "sgd"', "optimizer.name"),
    ],
)
def test_parts_that_a_method_is_not_made_of_are_refused(text, key):
    error = refusal("[sync]\n" + text)
    assert (error.code, error.message.split(" ")[0]) == ("FF-JOB-004", key)
    assert error.hint


def test_every_number_has_a_range():
    assert set(RANGES) == {name for name, key in KEYS.items() if key.kind in (int, float)}


@given(data=st.data())
@settings(max_examples=60)
def test_any_value_under_any_key_makes_a_sound_job_or_is_refused(data):
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    key = data.draw(st.sampled_from([*KEYS, *SECTIONS, "nonsense.x", "nonsense"]))
    section, _, name = key.rpartition(".")
    value = data.draw(scalars | st.lists(scalars, max_size=2))
    literal = json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan").replace("null", "''")
    try:
        resolved = load(f"[{section}]\n{name} = {literal}" if section else f"{name} = {literal}")
    except SpecError:
        return
    check(resolved.spec)


@given(text=st.text(alphabet="[]=.\"'\n abrounds1{},#\\", max_size=40))
@settings(max_examples=60)
def test_any_text_makes_a_sound_job_or_is_refused(text):
    with contextlib.suppress(SpecError):
        check(load(text).spec)


def test_what_is_shown_loads_to_the_same_job_and_tells_origins():
    resolved = load('rounds = 3\nname = "a"\n[data]\npath = "a\\"é\\\\b # c"', flags={"optimizer.lr": "1e-7"})
    rows = job_toml.lines(resolved)
    assert load("\n".join(rows)).spec == resolved.spec
    assert any(row.startswith("rounds = 3 ") and row.endswith("# job.toml line 1") for row in rows)
    assert any(row.startswith("lr = 1e-07 ") and row.endswith("# flag optimizer.lr") for row in rows)
    assert any(row.startswith("seed = 1 ") and row.endswith("# default") for row in rows)


def test_every_key_and_choice_is_explained():
    assert set(job_toml.ABOUT) == set(keys())
    for name, key in KEYS.items():
        for choice in get_args(key.kind) if get_origin(key.kind) is Literal else ():
            assert name == METHOD or str(choice) in job_toml.ABOUT[name]


def test_a_spec_built_from_its_own_values_is_the_same():
    spec = load(None, preset="tiny").spec
    assert build({key: value_of(spec, key) for key in TERM_KEYS}) == spec
    assert msgspec.structs.replace(spec, rounds=4) == with_value(spec, "rounds", 4)


@pytest.mark.parametrize(
    "flags",
    [
        {"audit.segments": "3"},
        {"sync.steps": "3"},
        {"audit.rate": "0", "audit.probation": "0"},
        {"audit.canaries": "0.51"},
        {"audit.jackpot": "-1"},
    ],
)
def test_canaries_need_audits_and_a_border_that_no_audit_shows(flags):
    ok = load(None, flags={"audit.canaries": "0.5", "audit.segments": "4"}).spec
    assert (ok.audit.canaries, ok.segments) == (0.5, 4)
    with pytest.raises(SpecError, match="FF-JOB-004"):
        load(None, flags={"audit.canaries": "0.5", **flags})


@pytest.mark.parametrize(
    ("flags", "key", "helps"),
    [
        ({"sync.steps": "100000", "batch": "8", "model.context": "64"}, "sync.steps", "sync.steps = 2048 or less"),
        ({"batch": "20000", "model.context": "64", "sync.steps": "15"}, "batch", "batch = 1092 or less"),
        ({"batch": "1000", "model.context": "4096", "sync.steps": "15"}, "batch", "batch = 17 or less"),
        ({"batch": "3", "model.context": "524288", "sync.steps": "15"}, "batch", "batch = 1, sync.steps = 2 or less"),
        ({"optimizer.lr": "1e-14"}, "optimizer.lr", "sync.value_bits = 8"),
        ({"optimizer.lr": "1e-14", "sync.value_bits": "1"}, "optimizer.lr", "sync.value_bits = 8"),
    ],
)
def test_what_a_round_cannot_hold_is_refused_with_the_setting_and_a_value_that_helps(flags, key, helps):
    error = refusal(flags=flags)
    assert error.code == "FF-JOB-004"
    assert error.message.startswith(f"{key} = ")
    assert helps in error.hint


@pytest.mark.parametrize("more", [{"sync.value_bits": "8"}, {"sync.error_decay": "1.0"}, {"sync.method": "dgc"}])
def test_a_small_rate_is_possible_where_values_of_any_size_are_sent_or_kept(more):
    assert load(None, flags={"optimizer.lr": "1e-14", **more}).spec.optimizer.lr == 1e-14
