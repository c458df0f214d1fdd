"""Options and targets that are refused, with the same words in Python and on the command line."""

import json
import os
import re
from typing import Any

import pytest
from refusals import BERT, assert_refused, file_with, refusal, unchanged

import triglot
from triglot.shared.errors import ConfigError, FrameworkError, OutputError, PortingError, TriglotError

# Configurations.

CONFIGURATIONS = {
    "unknown field": ({"layer": 2, "dropout": 0.1}, "unknown field.*dropout, layer.*hidden_size"),
    "wrong type": ({"layers": "two"}, "layers is 'two'.*expected.*int"),
    "size below 1": ({"hidden_size": 0}, "hidden_size is 0.*expected.*at least 1"),
    "unknown activation": ({"activation": "silu"}, "activation is 'silu'.*expected one of relu, gelu, gelu_tanh"),
    "unknown process": ({"pre_process": "a"}, "pre_process is 'a'.*expected.*'d'.*'n'"),
    "value without a mask": ({"masking_value": -1.0}, r"masking_value is -1\.0.*expected null.*'exclude'"),
    "mask without a value": ({"masking": "add"}, "masking_value is None.*expected.*negative number"),
    "segments without a vocabulary": (
        {"source_vocabulary": 0, "pad_id": None},
        "segments is 2.*expected 0.*source_vocabulary 0",
    ),
    "padding outside of the vocabulary": ({"pad_id": 101}, "pad_id is 101.*expected null.*below.*101"),
    "offset without a table": (
        {"positions": "none", "position_offset": 2},
        "position_offset is 2.*expected 0.*learned table",
    ),
    "unknown head": (
        {"heads_on_top": ["pooler", "classifier"]},
        r"heads_on_top is \('pooler', 'classifier'\).*expected.*logits, log_probabilities, pooler",
    ),
    "head without another": (
        {"heads_on_top": ["next_sentence"]},
        r"heads_on_top is \('next_sentence',\).*expected pooler",
    ),
    "tie without a head": ({"tied_embeddings": True}, "tied_embeddings is True.*expected false.*masked_lm"),
    "rate above 1": ({"attention_dropout": 1.5}, r"attention_dropout is 1\.5.*expected a rate from 0"),
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_configuration_that_is_impossible(kind, workplace, make_checkpoint, command):
    fields, problem = CONFIGURATIONS[kind]
    pattern = f"configuration: {problem}"
    (workplace / "fields.json").write_text(json.dumps({**BERT.to_dict(), **fields}))
    settings = [text for name, value in fields.items() for text in ("--set", f"{name}={json.dumps(value)}")]
    checkpoint = make_checkpoint(BERT)
    triglot.save(checkpoint, workplace / "model.npz")
    with unchanged(workplace):
        with refusal(ConfigError, pattern):
            triglot.ModelConfig.from_dict({**BERT.to_dict(), **fields})
        with refusal(ConfigError, pattern):
            triglot.port(checkpoint, workplace / "target.npz", config=fields)
        for model in ("bert-base-tiny", "model.npz"):
            assert_refused(command("inspect", model, *settings), pattern)
            assert_refused(command("parity", model, *settings), pattern)
            assert_refused(command("port", model, "target.npz", *settings), pattern)
            assert_refused(command("inspect", model, "--config", "fields.json"), pattern)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (("--config", "bert"), "cannot read bert: No such file or directory.*recipes.*translation"),
        (("--set", "layers"), "--set is 'layers'.*expected NAME=VALUE"),
        (("--set", "layers=1", "--set", "layers=2"), "--set layers is given twice"),
    ],
    ids=["no file", "no value", "twice"],
)
def test_options_that_are_not_a_configuration(options, pattern, workplace, command):
    with unchanged(workplace):
        assert_refused(command("inspect", "bert-base-tiny", *options), pattern)


# Choices: the command and option, and the names that both interfaces accept.

CHOICES = {
    "framework": ("--framework", "caffe", ("torch", "paddle", "jax")),
    "dtype": ("--dtype", "int8", ("float32", "float64", "bfloat16", "float16")),
    "device": ("--device", "tpu", ("cpu", "cuda")),
    "mode": ("--mode", "lazy", ("eager", "jit", "compiled")),
}


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"frameworks": 5}, "frameworks is 5; expected a list of names"),
        ({"frameworks": "torch"}, "frameworks is 'torch'; expected a list of names"),
        ({"inputs": [[1, 2]]}, "inputs is a list; expected text"),
        ({"inputs": "my sentences"}, "inputs describes batches, but there are none"),
        ({"model": 3}, "model is a int; expected text"),
        ({"progress": 3}, "progress is a int; expected a function"),
    ],
)
def test_arguments_of_the_wrong_type(arguments, pattern, make_checkpoint):
    with refusal(TriglotError, pattern):
        triglot.check(make_checkpoint(BERT), **arguments)


@pytest.mark.parametrize("what", CHOICES)
def test_an_unknown_choice(what, workplace, make_checkpoint, command):
    option, value, choices = CHOICES[what]
    with unchanged(workplace):
        pattern = f"'{option}': '{value}' is not one of {', '.join(map(repr, choices))}; see triglot parity --help"
        assert_refused(command("parity", "bert-base-tiny", option, value), pattern)
        arguments: dict[str, Any] = {"frameworks": [value]} if what == "framework" else {what: value}
        pattern = f"unknown {what} '{value}'.*expected one of {', '.join(choices)}"
        with refusal(FrameworkError, pattern):
            triglot.check(make_checkpoint(BERT), **arguments)
        if what != "framework":
            with refusal(FrameworkError, pattern):
                triglot.build("numpy", make_checkpoint(BERT), **arguments)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--seed", "-1", "greater than or equal to 0"),
        ("--seed", "x", "valid integer"),
        ("--threads", "0", "greater than or equal to 1"),
        ("--time-limit", "0.5", "greater than or equal to 1"),
        ("--time-limit", "long", "valid number"),
    ],
)
def test_an_impossible_number(option, value, problem, workplace, command):
    with unchanged(workplace):
        pattern = f"Invalid value for '{option}'.*{problem}.*see triglot parity --help"
        assert_refused(command("parity", "bert-base-tiny", option, value), pattern)


@pytest.mark.parametrize("option", ["--source-dialect", "--target-dialect"])
def test_an_unknown_dialect(option, workplace, make_checkpoint, command):
    with unchanged(workplace):
        pattern = f"'{option}': 'onnx' is not one of 'neutral', 'huggingface', 'huggingface-flax', 'paddlenlp'"
        assert_refused(command("port", "bert-base-tiny", "target.npz", option, "onnx"), pattern)
        with refusal(PortingError, r"dialect.*'onnx'.*expected one of neutral, huggingface, huggingface-flax"):
            arguments: dict[str, Any] = {option.strip("-").replace("-", "_"): "onnx"}
            triglot.port(make_checkpoint(BERT), "target", **arguments)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model", "model.txt"])
def test_a_neutral_checkpoint_under_another_name(name, workplace, make_checkpoint, command):
    """Nothing could recognise it later, and the name may be that of other weights."""
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    (workplace / name).write_bytes(b"other weights")
    pattern = rf"cannot write {name}:.*\.npz"
    with unchanged(workplace):
        assert_refused(command("port", path, name), pattern)
        assert_refused(command("train", "translation-tiny", "--target", name), pattern)
        for write in (triglot.save, triglot.port):
            with refusal(OutputError, pattern):
                write(triglot.load(path), name)


def test_a_target_that_is_the_source(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    with unchanged(workplace):
        assert_refused(command("port", path, path), f"cannot write {path}:.*input.*choose another file")


@pytest.mark.parametrize("ending", [".pt", ".npz"])
def test_the_state_dict_of_an_article_without_its_dialect(ending, workplace, make_checkpoint, command):
    triglot.port(make_checkpoint("annotated-tiny"), f"run{ending}", target_dialect="article-annotated")
    assert_refused(command("inspect", f"run{ending}"), "run.*: the tensors do not show heads; add --set heads")
    assert command("inspect", f"run{ending}", "--set", "heads=3", "--quiet") == (0, "", "")


def test_a_source_in_another_dialect(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    pattern = rf"cannot read {path}: manifest\.json is not an array; save the state dict with numpy\.savez"
    with unchanged(workplace):
        assert_refused(command("port", path, "target.npz", "--source-dialect", "huggingface"), pattern)
        with refusal(PortingError, pattern):
            triglot.port(path, "target", source_dialect="huggingface")
        result = command("port", "bert-base-tiny", "target.npz", "--source-dialect", "neutral")
        assert_refused(result, "bert-base-tiny is a recipe.*dialect")


def test_a_model_that_the_target_dialect_cannot_express(workplace, make_checkpoint, command):
    pattern = "dialect huggingface.*masking 'add'.*'exclude'.*masking_value -10000.0.*None.*--set"
    with unchanged(workplace):
        assert_refused(command("port", "ernie-base-tiny", "target", "--target-dialect", "huggingface"), pattern)
        with refusal(PortingError, pattern):
            triglot.port(make_checkpoint("ernie-base-tiny"), "target", target_dialect="huggingface")


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("torch", "--python is 'torch'.*expected NAME=VALUE"),
        ("caffe=/bin/sh", "unknown framework 'caffe'.*expected one of torch, paddle, jax"),
        ("torch=/no", "interpreter /no.*Python that has Triglot"),
        ("jax=/bin/sh", "pythons names jax.*leave it out"),
    ],
)
def test_an_interpreter_that_cannot_be_used(value, pattern, workplace, make_checkpoint, command):
    with unchanged(workplace):
        assert_refused(command("parity", "bert-base-tiny", "--framework", "torch", "--python", value), pattern)
        if "=" in value:
            framework, path = value.split("=")
            with refusal(FrameworkError, pattern):
                triglot.check(make_checkpoint(BERT), ["torch"], pythons={framework: path})


# Targets.


@pytest.fixture
def targets(workplace, monkeypatch):
    """Places where nothing can be written, and why."""
    for name in ("folder", "closed"):
        (workplace / name).mkdir()
    (workplace / "file").write_bytes(b"mine")
    (workplace / "folder" / "mine").write_bytes(b"mine")
    # Root may write everywhere, and tests run as root in containers, so the answer of the system is replaced.
    access, closed = os.access, str(workplace / "closed")
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.abspath(path) != closed and access(path, mode))
    return {
        "closed/new": "closed is not writable",
        "missing/new": "missing does not exist",
        "file/new": "file is no[t a]* folder",
    }


FOLDER = "it is a folder"


def test_a_target_that_cannot_be_written(targets, workplace, make_checkpoint, command):
    for target, reason in {**targets, "folder": FOLDER}.items():
        pattern = f"cannot write {target}:.*{reason}"
        with unchanged(workplace):
            assert_refused(command("port", "bert-base-tiny", target), pattern)
            with refusal(OutputError, pattern):
                triglot.port(make_checkpoint(BERT), target)
            with refusal(OutputError, pattern):
                triglot.save(make_checkpoint(BERT), target)


def test_a_report_that_cannot_be_written_is_refused_before_the_work(targets, workplace, command):
    for target, reason in {**targets, "folder": FOLDER}.items():
        with unchanged(workplace):
            for arguments in (["parity", "nothing"], ["inspect", "nothing"], ["recipes"], ["doctor"]):
                assert_refused(command(*arguments, "--json", target), f"cannot write {target}:.*{reason}")


def test_a_target_folder_that_cannot_be_written(targets, workplace, make_checkpoint, command):
    for target, reason in {**targets, "folder": "it already exists", "file": "it already exists"}.items():
        with unchanged(workplace):
            result = command("port", "nothing", target, "--target-dialect", "huggingface")
            assert_refused(result, f"cannot write {target}:.*{reason}")
            with refusal(OutputError, f"^cannot write {re.escape(str(target))}:.*{reason}"):
                triglot.port(make_checkpoint(BERT), target, target_dialect="huggingface")


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("gradient", "'--check': 'gradient' is not one of 'masks', 'steps', .*; see triglot parity --help"),
        ("generation", "the check 'generation' is impossible here: this model has no decoder"),
    ],
)
def test_a_check_that_the_model_does_not_have(kind, pattern, workplace, command):
    with unchanged(workplace):
        assert_refused(command("parity", "bert-base-tiny", "--check", kind), pattern)


def test_a_target_in_the_source_folder(workplace, make_checkpoint, command):
    triglot.port(make_checkpoint(BERT), "model", target_dialect="huggingface")
    with unchanged(workplace):
        for arguments in (
            ("model/model.safetensors", "--target-dialect", "nnx"),
            ("new.npz", "--json", "model/config.json"),
        ):
            result = command("port", "model", *arguments)
            assert_refused(result, "cannot write model/.*: it is also an input and would be lost")
