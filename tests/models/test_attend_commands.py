"""Attention alone in files and commands."""

import json

import numpy as np
import pytest
from attention_inputs import CONFIG, HEADS, MASKS, ROWS, SQUARE, bias_of, vectors

import triglot
from triglot.shared import inputs


def test_a_batch_is_read_from_a_file(tmp_path):
    given = vectors() | MASKS["both"]
    np.savez(tmp_path / "batch.npz", **given)
    read = inputs.read_batch(CONFIG, tmp_path / "batch.npz")
    for name, array in inputs.attention_batch(CONFIG, **given).arrays().items():
        np.testing.assert_array_equal(read.arrays()[name], array)
    np.savez(tmp_path / "half.npz", query=given["query"], key=given["key"])
    with pytest.raises(triglot.InputError, match=r"half.npz lacks value; expected query, key, value, allowed, "):
        inputs.read_batch(CONFIG, tmp_path / "half.npz")
    np.savez(tmp_path / "more.npz", **given, token_ids=np.zeros((1, 1), np.int64))
    with pytest.raises(triglot.InputError, match=r"more.npz holds token_ids; expected query, key, value, allowed, "):
        inputs.read_batch(CONFIG, tmp_path / "more.npz")


@pytest.mark.long
def test_parity_of_the_recipe_on_a_file_of_inputs(command, workplace):
    np.savez(workplace / "batch.npz", **vectors(), bias=bias_of((ROWS * HEADS, *SQUARE)))
    code, shown, _ = command("parity", "multihead-tiny", "--inputs", "batch.npz", "--json", "report.json")
    assert code == 0
    assert shown.endswith("verdict: pass\n")
    report = json.loads((workplace / "report.json").read_text())
    assert {check["framework"] for check in report["checks"]} == set(triglot.frameworks())
    names = {check["name"] for check in report["checks"]}
    assert {"attention.scores", "attention.output", "averaged", "api.attend", "api.attend.weights"} <= names


def test_parity_refuses_inputs_of_another_model(command, workplace):
    np.savez(workplace / "batch.npz", token_ids=np.ones((1, 2), np.int64))
    code, _, complaint = command("parity", "multihead-tiny", "--inputs", "batch.npz", "--framework", "torch")
    assert code == 2
    assert "batch.npz holds token_ids; expected query, key, value, allowed, key_valid, bias" in complaint


def test_checkpoint_is_saved_inspected_and_loaded(command, workplace, sharp_attention):
    triglot.save(sharp_attention, "model.npz")
    again = triglot.load("model.npz", verify="full")
    assert again.config == CONFIG
    assert again.digest == sharp_attention.digest
    assert list(again.tensors) == sorted(sharp_attention.tensors)
    code, shown, _ = command("inspect", "model.npz")
    assert code == 0
    assert sharp_attention.digest in shown
    assert "attention.output.bias" in shown
    code, _, _ = command("port", "model.npz", "again.npz")
    assert code == 0
    assert (workplace / "again.npz").read_bytes() == (workplace / "model.npz").read_bytes()


def test_foreign_dialects_refuse_attention(command, workplace, sharp_attention):
    triglot.save(sharp_attention, "model.npz")
    code, _, complaint = command("port", "model.npz", "folder", "--target-dialect", "huggingface")
    assert code == 2
    assert "attention" in complaint
    assert not (workplace / "folder").exists()
