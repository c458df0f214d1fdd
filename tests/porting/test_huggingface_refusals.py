"""Tensors and files that do not belong to a folder of transformers, or that it lacks, are refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from bert_folders import change_config, change_tensors, native_name

from triglot import port
from triglot.shared.errors import ModelNotFoundError, OutputError, PortingError
from triglot.shared.model import schema
from triglot.shared.model.recipes import recipe


def test_the_tensors_of_another_model_are_refused_with_its_type(bert_folder):
    change_tensors(bert_folder, lambda tensors: {f"mpnet.{name}": tensor for name, tensor in tensors.items()})
    change_config(bert_folder, model_type="mpnet")
    with pytest.raises(PortingError, match=r"is unknown: its model_type is 'mpnet', and its tensors are mpnet\."):
        port(bert_folder)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
        ("embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta"),
    ],
)
def test_a_tensor_under_two_names_is_refused(name, other, bert_folder):
    change_tensors(bert_folder, lambda tensors: {**tensors, other: tensors[name] + 1})
    with pytest.raises(PortingError, match=f"{re.escape(name)} occurs twice, as .* and .*; keep one of them$"):
        port(bert_folder)


def test_missing_and_unexpected_tensors_are_named_together(bert_folder):
    def change(tensors):
        del tensors["encoder.layer.1.output.dense.bias"], tensors["embeddings.LayerNorm.weight"]
        return {**tensors, "cls.predictions.bias": np.zeros(31, np.float32), "bert.other": np.zeros(1, np.float32)}

    change_tensors(bert_folder, change)
    problems = (
        f"cannot port {bert_folder}: missing embeddings.LayerNorm.weight; missing encoder.layer.1.output.dense.bias; "
        "unexpected bert.other; unexpected cls.predictions.bias (add masked_lm to heads_on_top); expected exactly"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(problems)}"):
        port(bert_folder)


def test_a_message_names_six_tensors_of_each_kind(bert_folder):
    change_tensors(bert_folder, lambda tensors: {f"other.{name}": tensor for name, tensor in tensors.items()})
    names = sorted(f"other.{native_name(name)}" for name in schema.parameters(replace(recipe("bert-base"), layers=2)))
    assert len(names) == 39
    with pytest.raises(PortingError, match=r"^cannot port .*: missing .*; unexpected .*") as error:
        port(bert_folder, source_dialect="huggingface")
    problems = str(error.value).removeprefix(f"cannot port {bert_folder}: ").split("; expected exactly")[0].split("; ")
    assert [problem.split()[0] for problem in problems] == ["missing"] * 6 + ["31"] + ["unexpected"] * 6 + ["33"]
    assert problems[:2] == [
        "missing embeddings.word_embeddings.weight",
        "missing embeddings.position_embeddings.weight",
    ]
    assert problems[6] == "31 more missing", "a pooler under another name does not count as a pooler"
    assert problems[7:] == [*(f"unexpected {name}" for name in names[:6]), "33 more unexpected"]


def test_an_incomplete_pooler_is_refused(bert_folder):
    change_tensors(bert_folder, lambda tensors: {k: v for k, v in tensors.items() if k != "pooler.dense.bias"})
    with pytest.raises(PortingError, match=r"missing pooler\.dense\.bias; expected"):
        port(bert_folder)


def test_tensors_of_another_shape_are_refused(bert_folder):
    change_config(bert_folder, intermediate_size=18)
    with pytest.raises(PortingError, match=r"dense\.weight has shape \(17, 12\), expected \(18, 12\)"):
        port(bert_folder)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_tensors_of_another_dtype_are_refused(dtype, bert_folder):
    name = "encoder.layer.1.output.dense.bias"
    change_tensors(bert_folder, lambda tensors: {**tensors, name: tensors[name].astype(dtype)})
    with pytest.raises(PortingError, match=rf"{re.escape(name)} has dtype {dtype}, expected one of float64, float32"):
        port(bert_folder)


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-1], lambda content: content[::-1]])
def test_damaged_weights_are_refused(damage, bert_folder):
    path = bert_folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PortingError, match=f"^cannot read {re.escape(str(path))}: .+; restore the file$"):
        port(bert_folder)


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("config.json", r".*config\.json is missing; save the model with its configuration, or give the file"),
        ("model.safetensors", r".* holds no weights that Triglot recognises; expected model\.safetensors or pytorch_"),
    ],
)
def test_a_folder_without_both_files_is_refused(missing, problem, bert_folder):
    (bert_folder / missing).unlink()
    with pytest.raises(PortingError, match=problem):
        port(bert_folder)


def test_a_path_to_nothing_is_refused(tmp_path):
    path = tmp_path / "nothing"
    with pytest.raises(ModelNotFoundError, match=f"^{re.escape(str(path))} does not exist; give"):
        port(path)


def test_another_file_is_refused(bert_folder):
    with pytest.raises(PortingError, match=r"^cannot read .*: its format is unknown; expected"):
        port(bert_folder / "config.json")


def test_a_target_that_cannot_be_written_is_refused(bert_folder, tmp_path):
    with pytest.raises(OutputError, match=r"^cannot write .*: the folder .* does not exist"):
        port(bert_folder, tmp_path / "missing" / "model.npz")
