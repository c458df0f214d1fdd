"""Everything that is refused, in Python and on the command line, in the same words.

In Python a refusal is a ``ValueError`` of ours; on the command line it is exit code 2 and exactly one line on standard
error. No file is changed or left behind by either.
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
from triglot.shared.inputs import random as batches
from triglot.shared.model.recipes import recipe, recipes

BERT = recipe("bert-base-tiny")
RECIPES = ", ".join(recipes())
NEVER_READ = "pickles are never read, because they can run any code: save the model as safetensors where it was made"


def snapshot(folder):
    """Every path below ``folder``, hidden ones too, and what it is."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            kind = os.lstat(path).st_mode, os.readlink(path) if os.path.islink(path) else None
            found[path] = kind, None if name in folders or kind[1] else Path(path).read_bytes()
    return found


@contextmanager
def unchanged(folder):
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


@contextmanager
def refusal(error, message):
    with pytest.raises(error) as raised:
        yield
    assert str(raised.value) == message
    assert isinstance(raised.value, TriglotError)
    assert isinstance(raised.value, ValueError)


def line(message):
    """What the command line makes of a refusal."""
    return 2, "", f"triglot: {message}\n"


# Models. Each is a function of a folder and ``make_checkpoint`` that makes the model and returns its path.


def folder_with(change_tensors=lambda tensors: tensors, **fields):
    """A folder of transformers, changed; a field that is ``...`` is removed."""

    def make(place, make_checkpoint):
        folder = place / "model"
        triglot.port(make_checkpoint(BERT), folder, target_dialect="huggingface")
        path = folder / "model.safetensors"
        save_file(change_tensors(load_file(path)), path)
        known = {**json.loads((folder / "config.json").read_text()), **fields}
        known = {name: value for name, value in known.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(known))
        return folder

    return make


def bare(place, make_checkpoint):
    folder = folder_with()(place, make_checkpoint)
    path = place / "bare.safetensors"
    (folder / "model.safetensors").rename(path)
    return path


def file_with(change):
    """A checkpoint whose tensors are changed before it is written, so that all of its checksums are right."""

    def make(place, make_checkpoint):
        checkpoint = make_checkpoint(BERT)
        change(checkpoint.tensors)  # behind the back of the class, which would refuse them
        triglot.save(checkpoint, place / "model.npz")
        return place / "model.npz"

    return make


def damaged(make, damage, name=None):
    """The model that ``make`` makes, with one of its files damaged."""

    def damaged_model(place, make_checkpoint):
        path = make(place, make_checkpoint)
        file = path / name if name else path
        file.write_bytes(damage(file.read_bytes()))
        return path

    return damaged_model


def content(name, make_bytes):
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


NO_MORE = (
    "expected the encoder of a BERT or ERNIE, its pooler and the heads of its pre-training, no more; save the model "
    "without other heads, or correct the configuration"
)
NO_MATCH = "cannot read {path}: the tensors do not match the configuration: "
GIVE_TENSORS = (
    "; give the tensors that the configuration describes, or the configuration of these tensors; give an undamaged "
    "file that Triglot wrote"
)
KNOWN_DIALECTS = (
    "expected a folder with config.json and model.safetensors, or a bare .safetensors file, or a neutral checkpoint "
    "(.npz)"
)
MODELS = {
    "folder, missing tensor": (
        folder_with(without("encoder.layer.1.output.dense.bias")),
        PortingError,
        f"cannot port {{path}}: missing encoder.layer.1.output.dense.bias; {NO_MORE}",
    ),
    "folder, extra tensor": (
        folder_with(with_tensor("classifier.weight", np.zeros((2, 24), np.float32))),
        PortingError,
        f"cannot port {{path}}: no place for classifier.weight; {NO_MORE}",
    ),
    "folder, wrong shape": (
        folder_with(with_tensor("pooler.dense.weight", np.zeros((24, 23), np.float32))),
        PortingError,
        "cannot port {path}: pooler.dense.weight has shape (24, 23), expected (24, 24); the configuration belongs to "
        "another model",
    ),
    "folder, wrong dtype": (
        folder_with(with_tensor("pooler.dense.bias", np.zeros(24, np.int64))),
        PortingError,
        "cannot read {path}/model.safetensors: pooler.dense.bias is I64; expected one of F64, F32, F16, BF16, save the "
        "model as float32",
    ),
    "folder, missing field": (
        folder_with(layer_norm_eps=...),
        PortingError,
        "cannot port {path}: config.json: layer_norm_eps is missing; add it, as the model was trained",
    ),
    "folder, impossible field": (
        folder_with(layer_norm_eps=2),
        PortingError,
        "cannot port {path}: config.json: layer_norm_eps is 2; expected a number between 0 and 1; correct it, as the "
        "model was trained",
    ),
    "folder, other model": (
        folder_with(model_type="t5"),
        PortingError,
        "cannot port {path}: config.json: model_type is 't5'; expected one of bert, ernie, other models are not "
        "supported",
    ),
    "folder, truncated weights": (
        damaged(folder_with(), lambda file: file[:-1], "model.safetensors"),
        PortingError,
        "cannot read {path}/model.safetensors: Error while deserializing header: incomplete metadata, file not fully "
        "covered; restore the file",
    ),
    "folder, truncated configuration": (
        damaged(folder_with(), lambda file: file[:1], "config.json"),
        PortingError,
        "cannot read {path}/config.json: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); "
        "restore the file",
    ),
    "folder, nothing in it": (
        empty_folder,
        PortingError,
        f"{{path}} is in no known dialect; {KNOWN_DIALECTS}",
    ),
    "bare weights": (
        bare,
        PortingError,
        "cannot port {path}: a bare state dict does not say heads, activation, norm_eps, masking; give them as config "
        "(--set heads=... on the command line), or a recipe; for the state dict of an article, name its dialect "
        "(--source-dialect)",
    ),
    "file, missing tensor": (
        file_with(lambda tensors: tensors.pop("heads.pooler.bias")),
        CheckpointError,
        f"{NO_MATCH}missing heads.pooler.bias (24,){GIVE_TENSORS}",
    ),
    "file, wrong shape": (
        file_with(lambda tensors: tensors.update({"heads.pooler.bias": np.zeros((24, 1), np.float32)})),
        CheckpointError,
        f"{NO_MATCH}heads.pooler.bias has shape (24, 1), expected (24,){GIVE_TENSORS}",
    ),
    "file, wrong dtype": (
        file_with(lambda tensors: tensors.update({"heads.pooler.bias": np.zeros(24, np.int64)})),
        CheckpointError,
        f"{NO_MATCH}heads.pooler.bias has dtype int64, expected one of float64, float32, float16, bfloat16"
        f"{GIVE_TENSORS}",
    ),
    "file, truncated": (
        damaged(file_with(lambda _: None), lambda file: file[:-1]),
        CheckpointError,
        "cannot read {path}: it is cut off; give an undamaged file that Triglot wrote",
    ),
    "file, empty": (
        content("model.npz", lambda: b""),
        CheckpointError,
        "cannot read {path}: it is empty; give an undamaged file that Triglot wrote",
    ),
    "file, of something else": (
        content("notes.txt", lambda: b"These are no weights.\n"),
        CheckpointError,
        "cannot read {path}: it is not a zip archive; give an undamaged file that Triglot wrote",
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_cannot_be_read(kind, workplace, make_checkpoint, command):
    make, error, message = MODELS[kind]
    path = make(workplace, make_checkpoint)
    message = message.format(path=path)
    with unchanged(workplace):
        with refusal(error, message):
            triglot.port(path)
        with refusal(error, message):
            triglot.port(path, workplace / "target.npz")
        assert command("inspect", path) == line(message)
        assert command("port", path, "target.npz") == line(message)
        assert command("port", path, "target", "--target-dialect", "huggingface") == line(message)
        assert command("parity", path, "--json", "report.json") == line(message)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind.startswith("file,")])
def test_load_says_what_port_says(kind, tmp_path, make_checkpoint):
    make, error, message = MODELS[kind]
    path = make(tmp_path, make_checkpoint)
    with refusal(error, message.format(path=path)):
        triglot.load(path)


def test_tensors_that_the_configuration_does_not_have(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    message = (
        "the tensors do not match the configuration: unexpected heads.pooler.weight; unexpected heads.pooler.bias; "
        "give the tensors that the configuration describes, or the configuration of these tensors"
    )
    with unchanged(workplace):
        with refusal(CheckpointError, message):
            triglot.Checkpoint(replace(BERT, heads_on_top=()), make_checkpoint(BERT).tensors)
        code, out, err = command("inspect", path, "--set", "heads_on_top=[]")
    # A file has its tensors in order of their names.
    first, second = "unexpected heads.pooler.weight", "unexpected heads.pooler.bias"
    assert (code, out, err) == line(message.replace(f"{first}; {second}", f"{second}; {first}"))


@pytest.mark.parametrize("what", ["parity", "inspect"])
@pytest.mark.parametrize("name", ["gpt", "bert-tiny", "no/such/model", "n" * 300])
def test_a_model_that_is_nowhere(name, what, workplace, command):
    message = (
        f"{name!r} is neither a recipe nor a path; give a checkpoint, a model folder, or one of the recipes {RECIPES}"
    )
    with unchanged(workplace):
        assert command(what, name) == line(message)


@pytest.mark.parametrize("what", ["parity", "inspect"])
@pytest.mark.parametrize("name", ["translation.npz", "no/such/model.safetensors"])
def test_a_file_that_is_nowhere(name, what, workplace, command):
    message = f"there is no {name}; give a file that exists, or a recipe (triglot recipes)"
    with unchanged(workplace):
        assert command(what, name) == line(message)
        assert command("port", name, "target.npz") == line(message)
        with refusal(ModelNotFoundError, f"{name} does not exist; give a checkpoint file or a model folder"):
            triglot.port(name)
        with refusal(ConfigError, f"unknown recipe {name!r}; the recipes are {RECIPES}"):
            triglot.initialize(name)


# Pickles, with a canary in each: reading it would leave a file.


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


def test_the_canary_sings(tmp_path):
    raw_pickle(2)(tmp_path / "pickle", Canary(tmp_path / "song"))
    with (tmp_path / "pickle").open("rb") as file:
        pickle.load(file)["weight"].close()
    assert (tmp_path / "song").exists()


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_in_place_of_a_checkpoint(name, workplace, command):
    path = workplace / name
    PICKLES[name](path, Canary(workplace / "song"))
    error = PortingError if name.endswith(".safetensors") else CheckpointError
    message = f"cannot read {path}: it is a pickle; {NEVER_READ}"
    with unchanged(workplace):
        with refusal(error, message):
            triglot.port(path)
        assert command("inspect", path) == line(message)
        assert command("port", path, "target.npz") == line(message)
        assert command("parity", path) == line(message)
        if error is CheckpointError:
            with refusal(error, message):
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
    message = f"cannot read {folder / name}: it is a pickle; {NEVER_READ}"
    with unchanged(workplace):
        with refusal(PortingError, message):
            triglot.port(folder)
        assert command("inspect", folder) == line(message)
    assert not (workplace / "song").exists()


def test_pickled_weights_beside_others_are_not_looked_at(workplace, make_checkpoint, command):
    folder = folder_with()(workplace, make_checkpoint)
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    with unchanged(workplace):
        assert triglot.port(folder).digest == make_checkpoint(BERT).digest
        assert command("inspect", folder, "--quiet") == (0, "", "")


def test_safetensors_that_begin_like_a_pickle_are_none(workplace, make_checkpoint):
    """The length of the header comes first, and in little-endian 0x10280 looks like the start of a pickle."""
    folder = folder_with()(workplace, make_checkpoint)
    path = folder / "model.safetensors"
    written, wanted = path.read_bytes(), 0x10280
    length = int.from_bytes(written[:8], "little")
    assert length < wanted
    path.write_bytes(wanted.to_bytes(8, "little") + written[8:][:length].ljust(wanted) + written[8 + length :])
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert triglot.port(folder).digest == make_checkpoint(BERT).digest


# Weights that no model can compute with.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_weights_that_are_not_finite(dtype, value, workplace, make_checkpoint, command):
    from triglot.shared.dtypes import FLOATS

    checkpoint = make_checkpoint(BERT)
    name = "encoder.layers.1.attention.value.bias"
    checkpoint.tensors[name] = checkpoint.tensors[name].astype(FLOATS[dtype])
    checkpoint.tensors[name][3] = value
    triglot.save(checkpoint, workplace / "model.npz")
    message = f"{name} holds NaN or infinity; no model can compute with it, take a checkpoint from before that"
    with unchanged(workplace):
        with refusal(CheckpointError, message):
            triglot.check(checkpoint)
        assert command("parity", "model.npz", "--json", "report.json") == line(message)
        # To look at such weights, and to carry them elsewhere, is no harm.
        assert command("inspect", "model.npz", "--quiet") == (0, "", "")


def test_weights_that_are_not_finite_are_built_by_nobody(implementation, make_checkpoint):
    checkpoint = make_checkpoint(BERT)
    checkpoint.tensors["heads.pooler.bias"][3] = np.nan
    message = (
        "heads.pooler.bias holds NaN or infinity; no model can compute with it, take a checkpoint from before that"
    )
    with refusal(CheckpointError, message):
        triglot.build(implementation, checkpoint)


# Inputs, to the tiny ERNIE: 101 tokens, 4 segments, 16 tasks, at most 37 tokens.

TOKENIZER = "check that the tokenizer belongs to the model"
IDS = np.array([[1, 2, 3], [4, 5, 6]])
INPUTS = {
    "token below": ({"token_ids": IDS - 2}, f"token_ids holds -1; expected ids from 0 to 100, {TOKENIZER}"),
    "token above": ({"token_ids": IDS + 95}, f"token_ids holds 101; expected ids from 0 to 100, {TOKENIZER}"),
    "token far above": (
        {"token_ids": IDS + 2**32},
        f"token_ids holds {2**32 + 6}; expected ids from 0 to 100, {TOKENIZER}",
    ),
    "segment below": ({"segment_ids": IDS - 3}, f"segment_ids holds -2; expected ids from 0 to 3, {TOKENIZER}"),
    "segment above": ({"segment_ids": IDS // 4 + 3}, f"segment_ids holds 4; expected ids from 0 to 3, {TOKENIZER}"),
    "task below": ({"task_ids": -IDS}, f"task_ids holds -6; expected ids from 0 to 15, {TOKENIZER}"),
    "task above": ({"task_ids": IDS + 10}, f"task_ids holds 16; expected ids from 0 to 15, {TOKENIZER}"),
    "tokens that are no integers": (
        {"token_ids": IDS * 1.0},
        "token_ids is float64 (2, 3); expected integers (B, S)",
    ),
    "tokens of one row": ({"token_ids": IDS[0]}, "token_ids is int64 (3,); expected integers (B, S)"),
    "segments of another shape": (
        {"segment_ids": IDS[:, :2]},
        "segment_ids is int64 (2, 2); expected integers (2, 3)",
    ),
    "tasks that are no integers": (
        {"task_ids": IDS * 0.5},
        "task_ids is float64 (2, 3); expected integers (2, 3)",
    ),
    "too long": (
        {"token_ids": np.ones((1, 38), np.int64)},
        "the length 38 is over the maximum 37 of the model; cut the input",
    ),
    "mask of another shape": (
        {"valid": np.ones((3, 2), np.bool_)},
        "valid is bool (3, 2); expected bool (2, 3), True for real tokens",
    ),
    "mask of another dtype": (
        {"valid": np.ones((2, 3), np.int64)},
        "valid is int64 (2, 3); expected bool (2, 3), True for real tokens",
    ),
    "no rows": (
        {"token_ids": IDS[:0]},
        "the batch is empty, shape (0, 3); give at least one row with one token",
    ),
    "no tokens": (
        {"token_ids": IDS[:, :0]},
        "the batch is empty, shape (2, 0); give at least one row with one token",
    ),
    "a row without a real token": (
        {"valid": np.array([[True, False, False], [False, False, False]])},
        "row 1 of valid has no real token; leave that row out",
    ),
}


@pytest.fixture(scope="module")
def built():
    """A model of each implementation, built when it is first asked for."""
    checkpoint, models = triglot.initialize("ernie-base-tiny"), {}

    def get(implementation):
        if implementation not in models:
            models[implementation] = triglot.build(implementation, checkpoint)
        return models[implementation]

    return get


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_does_not_fit_is_refused_by_every_implementation(kind, implementation, built):
    arrays, message = INPUTS[kind]
    model = built(implementation)
    for method in (model.encode, model.heads):
        with refusal(InputError, message):
            method(**{"token_ids": IDS, **arrays})


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_does_not_fit_is_refused_on_the_command_line(kind, workplace, command):
    arrays, message = INPUTS[kind]
    np.savez(workplace / "inputs.npz", **{"token_ids": IDS, **arrays})
    with unchanged(workplace):
        assert command("parity", "ernie-base-tiny", "--inputs", "inputs.npz", "--json", "r.json") == line(message)
        with refusal(InputError, message):
            batches.read_batch(recipe("ernie-base-tiny"), workplace / "inputs.npz")


def test_ids_that_a_model_does_not_have(workplace, command):
    np.savez(workplace / "inputs.npz", token_ids=IDS, task_ids=IDS)
    message = "task_ids was given, but this model has none; leave it out"
    assert command("parity", "bert-base-tiny", "--inputs", "inputs.npz") == line(message)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (
            np.zeros((2, 3, 23), np.float32),
            "the embedded input is float32 (2, 3, 23); expected float32 or float64 (B, S, 24), for this model has no "
            "vocabulary",
        ),
        (
            IDS,
            "the embedded input is int64 (2, 3); expected float32 or float64 (B, S, 24), for this model has no "
            "vocabulary",
        ),
        (
            np.full((1, 2, 24), np.nan),
            "the embedded input is not finite in float32; expected finite numbers",
        ),
    ],
)
def test_vectors_that_do_not_fit(vectors, message, workplace, command):
    np.savez(workplace / "inputs.npz", token_ids=vectors)
    with unchanged(workplace):
        assert command("parity", "dygraph-tiny", "--inputs", "inputs.npz") == line(message)


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


NO_NPZ = "cannot read {path}: it is no .npz of plain arrays; write it with numpy.savez"
EXPECTED = "expected token_ids, valid, segment_ids, task_ids"
INPUT_FILES = {
    "missing": (lambda path, _: None, "cannot read {path}: No such file or directory; give an .npz of NumPy"),
    "folder": (lambda path, _: path.mkdir(), "cannot read {path}: Is a directory; give an .npz of NumPy"),
    "empty": (lambda path, _: path.write_bytes(b""), NO_NPZ),
    "text": (lambda path, _: path.write_bytes(b"token_ids: 1 2 3"), NO_NPZ),
    "one array": (one_array, NO_NPZ),
    "truncated": (truncated_npz, NO_NPZ),
    "pickle": (raw_pickle(4), NO_NPZ),
    "torch": (torch_file, NO_NPZ),
    "pickled array": (pickled_array, NO_NPZ),
    "no tokens": (npz_with(valid=np.ones((2, 3), np.bool_)), f"{{path}} holds no token_ids; {EXPECTED}"),
    "names of transformers": (
        npz_with(token_ids=IDS, input_ids=IDS, attention_mask=IDS),
        f"{{path}} holds attention_mask, input_ids; {EXPECTED}",
    ),
}


@pytest.mark.parametrize("kind", INPUT_FILES)
def test_a_file_of_inputs_that_cannot_be_read(kind, workplace, command):
    make, message = INPUT_FILES[kind]
    path = workplace / "inputs.npz"
    make(path, Canary(workplace / "song"))
    message = message.format(path=path)
    with unchanged(workplace):
        with refusal(InputError, message):
            batches.read_batch(BERT, path)
        assert command("parity", "bert-base-tiny", "--inputs", path, "--json", "report.json") == line(message)
    assert not (workplace / "song").exists()


# Configurations.

KNOWN_FIELDS = ", ".join(BERT.to_dict())
CONFIGURATIONS = {
    "unknown field": (
        {"layer": 2, "dropout": 0.1},
        f"unknown field dropout, layer; known are {KNOWN_FIELDS}; remove it, or use a Triglot that knows it",
    ),
    "wrong type": ({"layers": "two"}, "layers is 'two'; expected a value of type int"),
    "size below 1": ({"hidden_size": 0}, "hidden_size is 0; expected a size of at least 1"),
    "unknown activation": ({"activation": "silu"}, "activation is 'silu'; expected one of relu, gelu, gelu_tanh"),
    "unknown process": (
        {"pre_process": "a"},
        "pre_process is 'a'; expected each at most once, but for d, of 'd' drop out, 'n' normalise",
    ),
    "value without a mask": (
        {"masking_value": -1.0},
        "masking_value is -1.0; expected null: masking 'exclude' needs no value",
    ),
    "mask without a value": (
        {"masking": "add"},
        "masking_value is None; expected a finite negative number, to add",
    ),
    "segments without a vocabulary": (
        {"source_vocabulary": 0, "pad_id": None},
        "segments is 2; expected 0: with source_vocabulary 0 nothing is embedded",
    ),
    "padding outside of the vocabulary": (
        {"pad_id": 101},
        "pad_id is 101; expected null, or an id below source_vocabulary 101",
    ),
    "offset without a table": (
        {"positions": "none", "position_offset": 2},
        "position_offset is 2; expected 0: only a learned table has unused rows",
    ),
    "unknown head": (
        {"heads_on_top": ["pooler", "classifier"]},
        "heads_on_top is ('pooler', 'classifier'); expected a tuple (a list, in JSON) of logits, "
        "log_probabilities, pooler, masked_lm, next_sentence, in this order, none twice",
    ),
    "head without another": (
        {"heads_on_top": ["next_sentence"]},
        "heads_on_top is ('next_sentence',); expected pooler beside next_sentence, which reads it",
    ),
    "tie without a head": (
        {"tied_embeddings": True},
        "tied_embeddings is True; expected false: only the masked_lm head can be tied, and there is none",
    ),
    "rate above 1": (
        {"attention_dropout": 1.5},
        "attention_dropout is 1.5; expected a rate from 0 up to, not including, 1",
    ),
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_configuration_that_cannot_be(kind, workplace, make_checkpoint, command):
    fields, problem = CONFIGURATIONS[kind]
    message = f"configuration: {problem}"
    (workplace / "fields.json").write_text(json.dumps({**BERT.to_dict(), **fields}))
    settings = [text for name, value in fields.items() for text in ("--set", f"{name}={json.dumps(value)}")]
    checkpoint = make_checkpoint(BERT)
    triglot.save(checkpoint, workplace / "model.npz")
    with unchanged(workplace):
        with refusal(ConfigError, message):
            triglot.ModelConfig.from_dict({**BERT.to_dict(), **fields})
        with refusal(ConfigError, message):
            triglot.port(checkpoint, workplace / "target.npz", config=fields)
        for model in ("bert-base-tiny", "model.npz"):
            assert command("inspect", model, *settings) == line(message)
            assert command("parity", model, *settings) == line(message)
            assert command("port", model, "target.npz", *settings) == line(message)
            assert command("inspect", model, "--config", "fields.json") == line(message)


def test_a_configuration_that_is_no_file(workplace, command):
    message = (
        "cannot read bert: No such file or directory; give a JSON file with fields of a configuration, or one of the "
        f"recipes {RECIPES}"
    )
    with unchanged(workplace):
        assert command("inspect", "bert-base-tiny", "--config", "bert") == line(message)


def test_a_setting_that_is_none(workplace, command):
    with unchanged(workplace):
        message = "--set 'layers' is no NAME=VALUE; give a name, an equals sign and a value"
        assert command("inspect", "bert-base-tiny", "--set", "layers") == line(message)
        message = "--set layers is given twice; give it once"
        assert command("inspect", "bert-base-tiny", "--set", "layers=1", "--set", "layers=2") == line(message)


# Choices: the option and what the command line says of it, the argument and what Python says.

CHOICES = {
    "framework": (["parity", "--framework", "caffe"], "'torch', 'paddle', 'jax'", "torch, paddle, jax"),
    "dtype": (
        ["parity", "--dtype", "int8"],
        "'float32', 'float64', 'bfloat16', 'float16'",
        "float32, float64, bfloat16, float16",
    ),
    "device": (["parity", "--device", "tpu"], "'cpu', 'cuda'", "cpu, cuda"),
    "mode": (["parity", "--mode", "lazy"], "'eager', 'jit', 'compiled'", "eager, jit, compiled"),
}


@pytest.mark.parametrize("what", CHOICES)
def test_an_unknown_choice(what, workplace, make_checkpoint, command):
    (name, option, value), theirs, ours = CHOICES[what]
    with unchanged(workplace):
        message = f"Invalid value for '{option}': '{value}' is not one of {theirs}; see triglot {name} --help"
        assert command(name, "bert-base-tiny", option, value) == line(message)
        arguments: dict[str, Any] = {"frameworks": [value]} if what == "framework" else {what: value}
        with refusal(FrameworkError, f"unknown {what} {value!r}; expected one of {ours}"):
            triglot.check(make_checkpoint(BERT), **arguments)
        if what != "framework":
            with refusal(FrameworkError, f"unknown {what} {value!r}; expected one of {ours}"):
                triglot.build("numpy", make_checkpoint(BERT), **arguments)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--seed", "-1", "Input should be greater than or equal to 0"),
        ("--seed", "x", "Input should be a valid integer, unable to parse string as an integer"),
        ("--threads", "0", "Input should be greater than or equal to 1"),
        ("--time-limit", "0.5", "Input should be greater than or equal to 1"),
        ("--time-limit", "long", "Input should be a valid number, unable to parse string as a number"),
    ],
)
def test_an_impossible_number(option, value, problem, workplace, command):
    with unchanged(workplace):
        message = f"Invalid value for '{option}': {problem}; see triglot parity --help"
        assert command("parity", "bert-base-tiny", option, value) == line(message)


@pytest.mark.parametrize("option", ["--source-dialect", "--target-dialect"])
def test_an_unknown_dialect(option, workplace, make_checkpoint, command):
    with unchanged(workplace):
        articles = [f"article-{name}" for name in ("translation", "dygraph", "prenorm", "annotated", "multihead")]
        known = ", ".join(map(repr, ("neutral", "huggingface", *articles)))
        message = f"Invalid value for '{option}': 'onnx' is not one of {known}; see triglot port --help"
        assert command("port", "bert-base-tiny", "target.npz", option, "onnx") == line(message)
        known = ", ".join(("huggingface", "neutral", *articles))
        with refusal(PortingError, f"unknown dialect 'onnx'; expected one of {known}"):
            given: dict[str, Any] = {option.strip("-").replace("-", "_"): "onnx"}
            triglot.port(make_checkpoint(BERT), "target", **given)


ENDING = "a neutral checkpoint ends in .npz; give it such a name, or say in which dialect else to write"


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model", "model.txt"])
def test_a_neutral_checkpoint_under_another_name(name, workplace, make_checkpoint, command):
    """It could not be told apart when it is read, and may be in the place of somebody's weights."""
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    (workplace / name).write_bytes(b"somebody's weights")
    message = f"cannot write {name}: {ENDING}"
    with unchanged(workplace):
        assert command("port", path, name) == line(message)
        assert command("train", "translation-tiny", "--target", name) == line(message)
        for write in (triglot.save, triglot.port):
            with refusal(OutputError, message):
                write(triglot.load(path), name)


def test_a_target_that_is_the_source(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    with unchanged(workplace):
        message = f"cannot write {path}: it is read as well, and would be lost; choose another file"
        assert command("port", path, path) == line(message)


def test_the_state_dict_of_an_article_without_its_dialect(workplace, make_checkpoint, command):
    checkpoint = make_checkpoint("annotated-tiny")
    for ending in (".pt", ".npz"):
        triglot.port(checkpoint, f"run{ending}", target_dialect="article-annotated")
        assert (
            "for the state dict of an article, name its dialect (--source-dialect)"
            in command("inspect", f"run{ending}")[2]
        )


def test_a_source_that_is_in_another_dialect(workplace, make_checkpoint, command):
    path = file_with(lambda _: None)(workplace, make_checkpoint)
    message = (
        f"{path} is not in the dialect huggingface; expected a folder with config.json and model.safetensors, or a "
        "bare .safetensors file"
    )
    with unchanged(workplace):
        assert command("port", path, "target.npz", "--source-dialect", "huggingface") == line(message)
        with refusal(PortingError, message):
            triglot.port(path, "target", source_dialect="huggingface")
        message = "bert-base-tiny is a recipe, which is in no dialect; leave the dialect out, or give a path"
        assert command("port", "bert-base-tiny", "target.npz", "--source-dialect", "neutral") == line(message)


def test_what_the_dialect_cannot_express(workplace, make_checkpoint, command):
    message = (
        "the dialect huggingface cannot express masking 'add' (only 'exclude'), masking_value -10000.0 (only None); "
        "correct the configuration if the model allows it (config=, or --set on the command line)"
    )
    with unchanged(workplace):
        assert command("port", "ernie-base-tiny", "target", "--target-dialect", "huggingface") == line(message)
        with refusal(PortingError, message):
            triglot.port(make_checkpoint("ernie-base-tiny"), "target", target_dialect="huggingface")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("torch", "--python 'torch' is no NAME=VALUE; give a name, an equals sign and a value"),
        ("caffe=/bin/sh", "unknown framework 'caffe'; expected one of torch, paddle, jax"),
        ("torch=/no", "there is no interpreter /no; give the path of a Python that has Triglot installed"),
        ("jax=/bin/sh", "an interpreter was given for jax, which takes no part; leave it out"),
    ],
)
def test_an_interpreter_that_is_none(value, message, workplace, make_checkpoint, command):
    with unchanged(workplace):
        assert command("parity", "bert-base-tiny", "--framework", "torch", "--python", value) == line(message)
        if "=" in value:
            framework, path = value.split("=")
            with refusal(FrameworkError, message):
                triglot.check(make_checkpoint(BERT), ["torch"], pythons={framework: path})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count of the random batches is 0; expected 1 or more"),
        ({"batch_size": -1}, "batch_size of the random batches is -1; expected 1 or more"),
        ({"seed": -1}, "seed of the random batches is -1; expected 0 or more"),
    ],
)
def test_random_batches_of_nothing(arguments, message):
    with refusal(InputError, message):
        batches.random_batches(BERT, **({"count": 1, "batch_size": 1, "seed": 0} | arguments))


# Targets.


@pytest.fixture
def targets(workplace, monkeypatch):
    """Places where nothing can be written, and why."""
    for name in ("folder", "closed"):
        (workplace / name).mkdir()
    (workplace / "file").write_bytes(b"mine")
    (workplace / "folder" / "mine").write_bytes(b"mine")
    # Root may write everywhere, and tests run as root in containers: so the answer of the system is given.
    access, closed = os.access, str(workplace / "closed")
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.abspath(path) != closed and access(path, mode))
    return {
        "closed/new": "the folder closed is not writable; choose another one",
        "missing/new": "the folder missing does not exist; create it",
        "file/new": "file is no folder; choose another one",
    }


FOLDER = "it is a folder; give the name of a file"


def test_a_target_that_cannot_be_written(targets, workplace, make_checkpoint, command):
    for target, reason in {**targets, "folder": FOLDER}.items():
        message = f"cannot write {target}: {reason}"
        with unchanged(workplace):
            assert command("port", "bert-base-tiny", target) == line(message)
            with refusal(OutputError, message):
                triglot.port(make_checkpoint(BERT), target)
            with refusal(OutputError, message):
                triglot.save(make_checkpoint(BERT), target)


def test_a_report_that_cannot_be_written_is_refused_before_the_work(targets, workplace, command):
    for target, reason in {**targets, "folder": FOLDER}.items():
        message = f"cannot write {target}: {reason}"
        with unchanged(workplace):
            for arguments in (["parity", "nothing"], ["inspect", "nothing"], ["recipes"], ["doctor"]):
                assert command(*arguments, "--json", target) == line(message)


def test_a_target_folder_that_cannot_be_written(targets, workplace, make_checkpoint, command):
    exists = "it exists and would be lost; remove it or choose another folder"
    for target, reason in {**targets, "folder": exists, "file": exists}.items():
        with unchanged(workplace):
            # Before the work on the command line, and with the whole path from Python.
            arguments = ("port", "nothing", target, "--target-dialect", "huggingface")
            assert command(*arguments) == line(f"cannot write {target}: {reason}")
            with pytest.raises(OutputError, match=f"^cannot write {re.escape(str(workplace / target))}: "):
                triglot.port(make_checkpoint(BERT), target, target_dialect="huggingface")


# The same from outside: a process of its own, and no more than one line of it.


def process(*arguments):
    command = [sys.executable, "-m", "triglot", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("kind", ["folder, missing tensor", "file, truncated", "bare weights"])
def test_a_process_says_one_line(kind, workplace, make_checkpoint):
    make, _, message = MODELS[kind]
    path = make(workplace, make_checkpoint)
    with unchanged(workplace):
        result = process("port", path, "target.npz")
    assert (result.returncode, result.stdout, result.stderr) == line(message.format(path=path))


def test_a_process_reads_no_pickle(workplace):
    torch_file(workplace / "inputs.npz", Canary(workplace / "song"))
    with unchanged(workplace):
        result = process("parity", "bert-base-tiny", "--inputs", "inputs.npz")
    message = NO_NPZ.format(path="inputs.npz")
    assert (result.returncode, result.stdout, result.stderr) == line(message)
