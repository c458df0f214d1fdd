"""Models that are refused, with the same words in Python and on the command line."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from refusals import (
    BERT,
    Canary,
    assert_refused,
    bare_weights,
    damaged,
    empty_folder,
    file_of,
    file_with,
    folder_with,
    old_torch_file,
    raw_pickle,
    refusal,
    run_process,
    torch_file,
    unchanged,
)

import triglot
from triglot.shared.errors import CheckpointError, ConfigError, ModelNotFoundError, PortingError

PICKLE = "cannot read {path}: (it is a (bare )?pickle|its pickle|it names).*; save"


def without(name):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def with_tensor(name, tensor):
    return lambda tensors: {**tensors, name: tensor}


MODELS = {
    "folder, missing tensor": (
        folder_with(without("encoder.layer.1.output.dense.bias")),
        PortingError,
        r"cannot port {path}: missing encoder\.layer\.1\.output\.dense\.bias; expected exactly the tensors of type",
    ),
    "folder, extra tensor": (
        folder_with(with_tensor("qa_outputs.weight", np.zeros((2, 24), np.float32))),
        PortingError,
        r"cannot port {path}: unexpected qa_outputs\.weight; expected exactly the tensors of type .*--heads",
    ),
    "folder, wrong shape": (
        folder_with(with_tensor("pooler.dense.weight", np.zeros((24, 23), np.float32))),
        PortingError,
        r"cannot port {path}: pooler\.dense\.weight.*\(24, 23\).*expected \(24, 24\)",
    ),
    "folder, wrong dtype": (
        folder_with(with_tensor("pooler.dense.bias", np.zeros(24, np.int64))),
        PortingError,
        r"cannot port {path}: pooler\.dense\.bias has dtype int64, expected.*float64, float32, float16, bfloat16",
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
        r"{path} holds no weights.*expected model\.safetensors or .*config\.json, or give a file",
    ),
    "bare weights": (
        bare_weights,
        PortingError,
        r"cannot port {path}:.*heads, activation, norm_eps, masking.*--set heads=NUMBER.*--set masking=exclude",
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
        PortingError,
        r"cannot read {path}: its format is unknown; expected a file \.pt.*, or a folder",
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


@pytest.mark.parametrize("kind", [kind for kind, (_, error, _) in MODELS.items() if error is CheckpointError])
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
        assert_refused(
            command(what, name), f"'{name}'.*neither a recipe nor an existing path.*run triglot recipes for a list"
        )


def test_a_misspelt_name_gets_a_suggestion(command, workplace):
    with unchanged(workplace):
        assert_refused(command("inspect", "bert-base-tny"), "did you mean 'bert-base-tiny'")
        assert_refused(
            command("inspect", "bert-base-tiny", "--set", "head=5"), "unknown field head; did you mean 'heads'"
        )
    with refusal(ConfigError, "did you mean 'minilm'"):
        triglot.initialize("minlm")


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
    pattern = PICKLE.format(path=path)
    with unchanged(workplace):
        with refusal((PortingError, CheckpointError), pattern):
            triglot.port(path)
        assert_refused(command("inspect", path), pattern)
        assert_refused(command("port", path, "target.npz"), pattern)
        assert_refused(command("parity", path), pattern)
        with refusal(CheckpointError, f"cannot read {path}:.*; save|.*not a zip archive"):
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
    from triglot.shared.arrays import FLOATS

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
        with refusal(PortingError, f"{pattern}.*allow_nonfinite=True, or --allow-nonfinite"):
            triglot.port(checkpoint, "other.npz")
        assert_refused(command("port", "model.npz", "other.npz"), pattern)
        # Inspecting such weights is allowed.
        assert command("inspect", "model.npz", "--quiet") == (0, "", "")
    assert command("port", "model.npz", "other.npz", "--allow-nonfinite", "--quiet") == (0, "", "")
    assert triglot.load("other.npz").digest == checkpoint.digest


def test_no_implementation_builds_weights_that_are_not_finite(implementation, make_checkpoint):
    checkpoint = make_checkpoint(BERT)
    checkpoint.tensors["heads.pooler.bias"][3] = np.nan
    with refusal(CheckpointError, r"heads\.pooler\.bias.*NaN or infinity"):
        triglot.build(implementation, checkpoint)


@pytest.mark.parametrize("kind", ["folder, missing tensor", "file, truncated", "bare weights"])
def test_a_process_refuses_in_one_line(kind, workplace, make_checkpoint):
    make, _, pattern = MODELS[kind]
    path = make(workplace, make_checkpoint)
    with unchanged(workplace):
        assert_refused(run_process("port", path, "target.npz"), pattern.format(path=path))


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
