"""Every refusal, in Python and on the command line, with the same words in both.

In Python a refusal is a ``TriglotError``, which is a ``ValueError``. On the command line it is exit code 2 and exactly
one line on standard error. Neither changes a file or leaves one behind. The patterns name the thing that is refused and
what was expected instead, not the whole sentence.
"""

import json
import os
import pickle
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import triglot
from triglot.shared import inputs
from triglot.shared.errors import (
    CheckpointError,
    ConfigError,
    FrameworkError,
    InputError,
    ModelNotFoundError,
    OutputError,
    PortingError,
    TriglotError,
)
from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")
PICKLE = "cannot read {path}: it is a pickle.*never read.*safetensors"


def snapshot(folder):
    """Every path below ``folder``, hidden ones included, with its mode and content."""
    content = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            mode, link = os.lstat(path).st_mode, os.readlink(path) if os.path.islink(path) else None
            content[path] = mode, link, None if name in folders or link else Path(path).read_bytes()
    return content


@contextmanager
def unchanged(folder):
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


@contextmanager
def refusal(error, pattern):
    """A Python call has to raise ``error`` with one line that matches ``pattern``."""
    with pytest.raises(error, match=pattern) as raised:
        yield
    assert isinstance(raised.value, TriglotError)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


def assert_refused(result, pattern):
    """A command has to end with exit code 2, print nothing, and write one line to standard error."""
    code, out, err = result
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("triglot: ")
    assert re.search(pattern, line), f"{line!r} does not match {pattern!r}"


def test_a_refusal_in_two_lines_or_other_words_is_noticed():
    assert_refused((2, "", "triglot: seed is -1; expected 0 or more\n"), "seed.*expected")
    for result in (
        (1, "", "triglot: seed is -1; expected 0 or more\n"),
        (2, "1\n", "triglot: seed is -1; expected 0 or more\n"),
        (2, "", "triglot: threads is -1; expected 0 or more\n"),
        (2, "", "seed is -1; expected 0 or more\n"),
    ):
        with pytest.raises(AssertionError):
            assert_refused(result, "seed.*expected")
    with pytest.raises(ValueError, match="too many values"):
        assert_refused((2, "", "triglot: seed is -1\nexpected 0 or more\n"), "seed.*expected")


# Unreadable models. Each maker takes a folder and ``make_checkpoint``, writes the model and returns its path.


def folder_with(change_tensors=lambda tensors: tensors, **fields):
    """A model folder of transformers with changed tensors and fields; the value ``...`` removes a field."""

    def make(place, make_checkpoint):
        folder = place / "model"
        triglot.port(make_checkpoint(BERT), folder, target_dialect="huggingface")
        path = folder / "model.safetensors"
        save_file(change_tensors(load_file(path)), path)
        config = {**json.loads((folder / "config.json").read_text()), **fields}
        config = {name: value for name, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def bare_weights(place, make_checkpoint):
    folder = folder_with()(place, make_checkpoint)
    path = place / "bare.safetensors"
    (folder / "model.safetensors").rename(path)
    return path


def file_with(change):
    """A checkpoint whose tensors were changed before it was written, so all of its checksums are correct."""

    def make(place, make_checkpoint):
        checkpoint = make_checkpoint(BERT)
        change(checkpoint.tensors)  # in place, because the constructor would refuse them
        triglot.save(checkpoint, place / "model.npz")
        return place / "model.npz"

    return make


def damaged(make, damage, name=None):
    """The model that ``make`` writes, with one of its files damaged."""

    def damaged_model(place, make_checkpoint):
        path = make(place, make_checkpoint)
        file = path / name if name else path
        file.write_bytes(damage(file.read_bytes()))
        return path

    return damaged_model


def file_of(name, make_bytes):
    def make(place, _):
        (place / name).write_bytes(make_bytes())
        return place / name

    return make


def empty_folder(place, _):
    (place / "model").mkdir()
    return place / "model"


def without(name):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def with_tensor(name, tensor):
    return lambda tensors: {**tensors, name: tensor}


MODELS = {
    "folder, missing tensor": (
        folder_with(without("encoder.layer.1.output.dense.bias")),
        PortingError,
        r"cannot port {path}: missing encoder\.layer\.1\.output\.dense\.bias.*expected the encoder",
    ),
    "folder, extra tensor": (
        folder_with(with_tensor("classifier.weight", np.zeros((2, 24), np.float32))),
        PortingError,
        r"cannot port {path}:.*classifier\.weight.*expected the encoder",
    ),
    "folder, wrong shape": (
        folder_with(with_tensor("pooler.dense.weight", np.zeros((24, 23), np.float32))),
        PortingError,
        r"cannot port {path}: pooler\.dense\.weight.*\(24, 23\).*expected \(24, 24\)",
    ),
    "folder, wrong dtype": (
        folder_with(with_tensor("pooler.dense.bias", np.zeros(24, np.int64))),
        PortingError,
        r"cannot read {path}/model\.safetensors: pooler\.dense\.bias.*I64.*expected.*F64, F32, F16, BF16",
    ),
    "folder, missing field": (
        folder_with(layer_norm_eps=...),
        PortingError,
        r"cannot port {path}: config\.json: layer_norm_eps is missing",
    ),
    "folder, impossible field": (
        folder_with(layer_norm_eps=2),
        PortingError,
        r"cannot port {path}: config\.json: layer_norm_eps is 2; expected a number between 0 and 1",
    ),
    "folder, other model": (
        folder_with(model_type="t5"),
        PortingError,
        r"cannot port {path}: config\.json: model_type is 't5'; expected one of bert, ernie",
    ),
    "folder, truncated weights": (
        damaged(folder_with(), lambda file: file[:-1], "model.safetensors"),
        PortingError,
        r"cannot read {path}/model\.safetensors:.*incomplete.*restore",
    ),
    "folder, truncated configuration": (
        damaged(folder_with(), lambda file: file[:1], "config.json"),
        PortingError,
        r"cannot read {path}/config\.json: Expecting property name.*restore",
    ),
    "folder, nothing in it": (
        empty_folder,
        PortingError,
        r"{path} is in no known dialect; expected.*config\.json.*safetensors.*\.npz",
    ),
    "bare weights": (
        bare_weights,
        PortingError,
        r"cannot port {path}:.*heads, activation, norm_eps, masking.*--set.*--source-dialect",
    ),
    "file, missing tensor": (
        file_with(lambda tensors: tensors.pop("heads.pooler.bias")),
        CheckpointError,
        r"cannot read {path}:.*missing heads\.pooler\.bias \(24,\)",
    ),
    "file, wrong shape": (
        file_with(lambda tensors: tensors.update({"heads.pooler.bias": np.zeros((24, 1), np.float32)})),
        CheckpointError,
        r"cannot read {path}:.*heads\.pooler\.bias has shape \(24, 1\), expected \(24,\)",
    ),
    "file, wrong dtype": (
        file_with(lambda tensors: tensors.update({"heads.pooler.bias": np.zeros(24, np.int64)})),
        CheckpointError,
        r"cannot read {path}:.*heads\.pooler\.bias has dtype int64, expected.*float64, float32, float16, bfloat16",
    ),
    "file, truncated": (
        damaged(file_with(lambda _: None), lambda file: file[:-1]),
        CheckpointError,
        r"cannot read {path}: it is cut off.*undamaged",
    ),
    "file, empty": (
        file_of("model.npz", lambda: b""),
        CheckpointError,
        r"cannot read {path}: it is empty.*undamaged",
    ),
    "file, not weights": (
        file_of("notes.txt", lambda: b"These are not weights.\n"),
        CheckpointError,
        r"cannot read {path}: it is not a zip archive.*undamaged",
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_cannot_be_read(kind, workplace, make_checkpoint, command):
    make, error, pattern = MODELS[kind]
    path = make(workplace, make_checkpoint)
    pattern = pattern.format(path=path)
    with unchanged(workplace):
        with refusal(error, pattern):
            triglot.port(path)
        with refusal(error, pattern):
            triglot.port(path, workplace / "target.npz")
        assert_refused(command("inspect", path), pattern)
        assert_refused(command("port", path, "target.npz"), pattern)
        assert_refused(command("port", path, "target", "--target-dialect", "huggingface"), pattern)
        assert_refused(command("parity", path, "--json", "report.json"), pattern)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind.startswith("file,")])
def test_load_refuses_with_the_words_of_port(kind, tmp_path, make_checkpoint):
    make, error, pattern = MODELS[kind]
    path = make(tmp_path, make_checkpoint)
    with refusal(error, pattern.format(path=path)):
        triglot.load(path)


def test_tensors_that_the_configuration_does_not_have(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    with unchanged(workplace):
        with refusal(CheckpointError, r"unexpected heads\.pooler\.weight.*unexpected heads\.pooler\.bias"):
            triglot.Checkpoint(replace(BERT, heads_on_top=()), make_checkpoint(BERT).tensors)
        # A file lists its tensors in alphabetical order.
        pattern = r"unexpected heads\.pooler\.bias.*unexpected heads\.pooler\.weight"
        assert_refused(command("inspect", path, "--set", "heads_on_top=[]"), pattern)


@pytest.mark.parametrize("what", ["parity", "inspect"])
@pytest.mark.parametrize("name", ["gpt", "bert-tiny", "no/such/model", "n" * 300])
def test_a_model_that_does_not_exist(name, what, workplace, command):
    with unchanged(workplace):
        assert_refused(command(what, name), f"'{name}'.*neither a recipe nor a path.*translation, prenorm")


@pytest.mark.parametrize("what", ["parity", "inspect"])
@pytest.mark.parametrize("name", ["translation.npz", "no/such/model.safetensors"])
def test_a_file_that_does_not_exist(name, what, workplace, command):
    pattern = f"{re.escape(name)}.*recipe"
    with unchanged(workplace):
        assert_refused(command(what, name), pattern)
        assert_refused(command("port", name, "target.npz"), pattern)
        with refusal(ModelNotFoundError, f"{re.escape(name)} does not exist"):
            triglot.port(name)
        with refusal(ConfigError, f"unknown recipe '{re.escape(name)}'.*translation, prenorm"):
            triglot.initialize(name)


# Pickles. Each holds a canary: unpickling it would create a file.


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def torch_file(path, canary):
    import torch

    torch.save({"weight": canary}, path)


def old_torch_file(path, canary):
    import torch

    torch.save({"weight": canary}, path, _use_new_zipfile_serialization=False)


def raw_pickle(protocol):
    return lambda path, canary: path.write_bytes(pickle.dumps({"weight": canary}, protocol))


PICKLES = {
    "model.pt": torch_file,
    "model.bin": torch_file,
    "old.pt": old_torch_file,
    "pickle.npz": raw_pickle(5),
    "model.pdparams": raw_pickle(4),
    "model.pkl": raw_pickle(2),
    "ancient.pkl": raw_pickle(0),
    "torch.safetensors": torch_file,
    "old.safetensors": old_torch_file,
    "pickle.safetensors": raw_pickle(4),
}


def test_unpickling_the_canary_creates_a_file(tmp_path):
    raw_pickle(2)(tmp_path / "pickle", Canary(tmp_path / "song"))
    with (tmp_path / "pickle").open("rb") as file:
        pickle.load(file)["weight"].close()
    assert (tmp_path / "song").exists()


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_in_place_of_a_checkpoint(name, workplace, command):
    path = workplace / name
    PICKLES[name](path, Canary(workplace / "song"))
    error = PortingError if name.endswith(".safetensors") else CheckpointError
    pattern = PICKLE.format(path=path)
    with unchanged(workplace):
        with refusal(error, pattern):
            triglot.port(path)
        assert_refused(command("inspect", path), pattern)
        assert_refused(command("port", path, "target.npz"), pattern)
        assert_refused(command("parity", path), pattern)
        if error is CheckpointError:
            with refusal(error, pattern):
                triglot.load(path)
    assert not (workplace / "song").exists()


@pytest.mark.parametrize(
    ("name", "has_config"), [("pytorch_model.bin", True), ("pytorch_model.bin", False), ("model_state.pdparams", True)]
)
def test_a_folder_with_pickled_weights(name, has_config, workplace, make_checkpoint, command):
    folder = folder_with()(workplace, make_checkpoint)
    (folder / "model.safetensors").unlink()
    if not has_config:
        (folder / "config.json").unlink()
    torch_file(folder / name, Canary(workplace / "song"))
    pattern = PICKLE.format(path=folder / name)
    with unchanged(workplace):
        with refusal(PortingError, pattern):
            triglot.port(folder)
        assert_refused(command("inspect", folder), pattern)
    assert not (workplace / "song").exists()


def test_pickled_weights_beside_safetensors_are_ignored(workplace, make_checkpoint, command):
    folder = folder_with()(workplace, make_checkpoint)
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    with unchanged(workplace):
        assert triglot.port(folder).digest == make_checkpoint(BERT).digest
        assert command("inspect", folder, "--quiet") == (0, "", "")


def test_safetensors_that_begin_like_a_pickle_are_read(workplace, make_checkpoint):
    """A file begins with the length of its header, and 0x10280 in little-endian looks like the start of a pickle."""
    folder = folder_with()(workplace, make_checkpoint)
    path = folder / "model.safetensors"
    written, wanted = path.read_bytes(), 0x10280
    length = int.from_bytes(written[:8], "little")
    assert length < wanted
    path.write_bytes(wanted.to_bytes(8, "little") + written[8:][:length].ljust(wanted) + written[8 + length :])
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert triglot.port(folder).digest == make_checkpoint(BERT).digest


# Weights that are not finite.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_weights_that_are_not_finite(dtype, value, workplace, make_checkpoint, command):
    from triglot.shared.dtypes import FLOATS

    checkpoint = make_checkpoint(BERT)
    name = "encoder.layers.1.attention.value.bias"
    checkpoint.tensors[name] = checkpoint.tensors[name].astype(FLOATS[dtype])
    checkpoint.tensors[name][3] = value
    triglot.save(checkpoint, workplace / "model.npz")
    pattern = f"{re.escape(name)}.*NaN or infinity"
    with unchanged(workplace):
        with refusal(CheckpointError, pattern):
            triglot.check(checkpoint)
        assert_refused(command("parity", "model.npz", "--json", "report.json"), pattern)
        # Inspecting such weights is allowed.
        assert command("inspect", "model.npz", "--quiet") == (0, "", "")


def test_no_implementation_builds_weights_that_are_not_finite(implementation, make_checkpoint):
    checkpoint = make_checkpoint(BERT)
    checkpoint.tensors["heads.pooler.bias"][3] = np.nan
    with refusal(CheckpointError, r"heads\.pooler\.bias.*NaN or infinity"):
        triglot.build(implementation, checkpoint)


# Inputs for the tiny ERNIE: 101 tokens, 4 segments, 16 tasks, at most 37 tokens per row.

IDS = np.array([[1, 2, 3], [4, 5, 6]])
INPUTS = {
    "token below": ({"token_ids": IDS - 2}, "token_ids.*-1.*expected ids from 0 to 100"),
    "token above": ({"token_ids": IDS + 95}, "token_ids.*101.*expected ids from 0 to 100"),
    "token far above": ({"token_ids": IDS + 2**32}, f"token_ids.*{2**32 + 6}.*expected ids from 0 to 100"),
    "segment below": ({"segment_ids": IDS - 3}, "segment_ids.*-2.*expected ids from 0 to 3"),
    "segment above": ({"segment_ids": IDS // 4 + 3}, "segment_ids.*4.*expected ids from 0 to 3"),
    "task below": ({"task_ids": -IDS}, "task_ids.*-6.*expected ids from 0 to 15"),
    "task above": ({"task_ids": IDS + 10}, "task_ids.*16.*expected ids from 0 to 15"),
    "tokens that are not integers": ({"token_ids": IDS * 1.0}, r"token_ids.*float64 \(2, 3\).*expected integers"),
    "tokens of one row": ({"token_ids": IDS[0]}, r"token_ids.*int64 \(3,\).*expected integers \(B, S\)"),
    "segments of another shape": (
        {"segment_ids": IDS[:, :2]},
        r"segment_ids.*int64 \(2, 2\).*expected integers \(2, 3\)",
    ),
    "tasks that are not integers": (
        {"task_ids": IDS * 0.5},
        r"task_ids.*float64 \(2, 3\).*expected integers \(2, 3\)",
    ),
    "too long": ({"token_ids": np.ones((1, 38), np.int64)}, "length.*38.*37"),
    "mask of another shape": ({"valid": np.ones((3, 2), np.bool_)}, r"valid.*bool \(3, 2\).*expected bool \(2, 3\)"),
    "mask of another dtype": ({"valid": np.ones((2, 3), np.int64)}, r"valid.*int64 \(2, 3\).*expected bool \(2, 3\)"),
    "no rows": ({"token_ids": IDS[:0]}, r"empty.*\(0, 3\).*at least one row"),
    "no tokens": ({"token_ids": IDS[:, :0]}, r"empty.*\(2, 0\).*at least one row"),
    "a row without a real token": (
        {"valid": np.array([[True, False, False], [False, False, False]])},
        "row 1 of valid.*no real token",
    ),
}


@pytest.fixture(scope="module")
def built():
    """A function that returns the model of an implementation and builds each only once."""
    checkpoint, models = triglot.initialize("ernie-base-tiny"), {}

    def get(implementation):
        if implementation not in models:
            models[implementation] = triglot.build(implementation, checkpoint)
        return models[implementation]

    return get


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_does_not_fit_is_refused_by_every_implementation(kind, implementation, built):
    arrays, pattern = INPUTS[kind]
    model = built(implementation)
    for method in (model.encode, model.heads):
        with refusal(InputError, pattern):
            method(**{"token_ids": IDS, **arrays})


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_does_not_fit_is_refused_on_the_command_line(kind, workplace, command):
    arrays, pattern = INPUTS[kind]
    np.savez(workplace / "inputs.npz", **{"token_ids": IDS, **arrays})
    with unchanged(workplace):
        assert_refused(command("parity", "ernie-base-tiny", "--inputs", "inputs.npz", "--json", "r.json"), pattern)
        with refusal(InputError, pattern):
            inputs.read_batch(recipe("ernie-base-tiny"), workplace / "inputs.npz")


def test_ids_that_a_model_does_not_have(workplace, command):
    np.savez(workplace / "inputs.npz", token_ids=IDS, task_ids=IDS)
    assert_refused(command("parity", "bert-base-tiny", "--inputs", "inputs.npz"), "task_ids.*this model has none")


@pytest.mark.parametrize(
    ("vectors", "pattern"),
    [
        (np.zeros((2, 3, 23), np.float32), r"input.*float32 \(2, 3, 23\).*expected float.*\(B, S, 24\).*vocabulary"),
        (IDS, r"input.*int64 \(2, 3\).*expected float.*\(B, S, 24\).*vocabulary"),
        (np.full((1, 2, 24), np.nan), "input.*not finite.*expected finite"),
    ],
    ids=["size", "dtype", "NaN"],
)
def test_vectors_that_do_not_fit(vectors, pattern, workplace, command):
    np.savez(workplace / "inputs.npz", token_ids=vectors)
    with unchanged(workplace):
        assert_refused(command("parity", "dygraph-tiny", "--inputs", "inputs.npz"), pattern)


def npz_with(**arrays):
    return lambda path, _: np.savez(path, **arrays)


def truncated_npz(path, canary):
    npz_with(token_ids=IDS)(path, canary)
    path.write_bytes(path.read_bytes()[:-30])


def pickled_array(path, canary):
    np.savez(path, token_ids=np.array([canary], object))


def one_array(path, _):
    with path.open("wb") as file:
        np.save(file, IDS)


NO_NPZ = r"cannot read {path}:.*\.npz of plain arrays.*numpy\.savez"
INPUT_FILES = {
    "missing": (lambda path, _: None, "cannot read {path}: No such file or directory"),
    "folder": (lambda path, _: path.mkdir(), "cannot read {path}: Is a directory"),
    "empty": (lambda path, _: path.write_bytes(b""), NO_NPZ),
    "text": (lambda path, _: path.write_bytes(b"token_ids: 1 2 3"), NO_NPZ),
    "one array": (one_array, NO_NPZ),
    "truncated": (truncated_npz, NO_NPZ),
    "pickle": (raw_pickle(4), NO_NPZ),
    "torch": (torch_file, NO_NPZ),
    "pickled array": (pickled_array, NO_NPZ),
    "no tokens": (npz_with(valid=np.ones((2, 3), np.bool_)), "{path} lacks token_ids.*expected token_ids, valid"),
    "names of transformers": (
        npz_with(token_ids=IDS, input_ids=IDS, attention_mask=IDS),
        "{path} holds attention_mask, input_ids.*expected token_ids, valid, segment_ids, task_ids",
    ),
}


@pytest.mark.parametrize("kind", INPUT_FILES)
def test_a_file_of_inputs_that_cannot_be_read(kind, workplace, command):
    make, pattern = INPUT_FILES[kind]
    path = workplace / "inputs.npz"
    make(path, Canary(workplace / "song"))
    pattern = pattern.format(path=path)
    with unchanged(workplace):
        with refusal(InputError, pattern):
            inputs.read_batch(BERT, path)
        assert_refused(command("parity", "bert-base-tiny", "--inputs", path, "--json", "report.json"), pattern)
    assert not (workplace / "song").exists()


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
        pattern = f"'{option}': 'onnx' is not one of 'neutral', 'huggingface', 'article-translation'"
        assert_refused(command("port", "bert-base-tiny", "target.npz", option, "onnx"), pattern)
        with refusal(PortingError, "unknown dialect 'onnx'.*expected one of huggingface, neutral, article-translation"):
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
    assert_refused(command("inspect", f"run{ending}"), "article.*--source-dialect")


def test_a_source_in_another_dialect(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    pattern = rf"{path} is not in the dialect huggingface.*expected.*config\.json"
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
        ("jax=/bin/sh", "interpreter.*jax"),
    ],
)
def test_an_interpreter_that_cannot_be_used(value, pattern, workplace, make_checkpoint, command):
    with unchanged(workplace):
        assert_refused(command("parity", "bert-base-tiny", "--framework", "torch", "--python", value), pattern)
        if "=" in value:
            framework, path = value.split("=")
            with refusal(FrameworkError, pattern):
                triglot.check(make_checkpoint(BERT), ["torch"], pythons={framework: path})


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"count": 0}, "count.*0.*expected 1 or more"),
        ({"batch_size": -1}, "batch_size.*-1.*expected 1 or more"),
        ({"seed": -1}, "seed.*-1.*expected 0 or more"),
    ],
)
def test_impossible_random_batches(arguments, pattern):
    with refusal(InputError, pattern):
        inputs.random_batches(BERT, **({"count": 1, "batch_size": 1, "seed": 0} | arguments))


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
    for target, reason in {**targets, "folder": "it exists", "file": "it exists"}.items():
        with unchanged(workplace):
            # The command line refuses before the work; Python gives the whole path.
            result = command("port", "nothing", target, "--target-dialect", "huggingface")
            assert_refused(result, f"cannot write {target}:.*{reason}")
            with refusal(OutputError, f"^cannot write {re.escape(str(workplace / target))}: "):
                triglot.port(make_checkpoint(BERT), target, target_dialect="huggingface")


# The same refusals from a separate process.


def run_process(*arguments):
    command = [sys.executable, "-m", "triglot", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("kind", ["folder, missing tensor", "file, truncated", "bare weights"])
def test_a_process_refuses_in_one_line(kind, workplace, make_checkpoint):
    make, _, pattern = MODELS[kind]
    path = make(workplace, make_checkpoint)
    with unchanged(workplace):
        assert_refused(run_process("port", path, "target.npz"), pattern.format(path=path))


def test_a_process_reads_no_pickle(workplace):
    torch_file(workplace / "inputs.npz", Canary(workplace / "song"))
    with unchanged(workplace):
        result = run_process("parity", "bert-base-tiny", "--inputs", "inputs.npz")
        assert_refused(result, NO_NPZ.format(path="inputs.npz"))
