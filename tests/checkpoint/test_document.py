"""The Python code in docs/checkpoint.md reads and verifies what Triglot writes, without Triglot."""

import re
import zipfile
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import STORED, flip_a_bit, tied

from triglot.shared import checkpoint
from triglot.shared.model.config import ModelConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoint.md"


def code_of_the_document():
    reading, verifying = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert "triglot" not in reading + verifying
    return reading + verifying


@pytest.mark.parametrize("kind", ["bert-base-tiny", "dygraph-tiny", "translation-tiny", "tied"])
def test_its_code_reads_and_verifies_a_checkpoint(kind, make_checkpoint, tmp_path, monkeypatch):
    original = tied("bfloat16") if kind == "tied" else make_checkpoint(kind)
    checkpoint.save(original, tmp_path / "model.npz")
    monkeypatch.chdir(tmp_path)
    results = {}
    exec(code_of_the_document(), results)
    assert results["tensors"].keys() == {*original.tensors, *original.aliases}
    for name, tensor in original.tensors.items():
        np.testing.assert_array_equal(results["tensors"][name], tensor.astype(np.float32), err_msg=name)
    for alias, name in original.aliases.items():
        assert results["tensors"][alias] is results["tensors"][name]
    assert results["manifest"]["digest"] == original.digest
    defaults = {field.name: field.default for field in fields(ModelConfig) if field.default is not MISSING}
    assert results["defaults"] == {**defaults, "heads_on_top": [], "sentence_layers": []}


def test_its_code_notices_damage(make_checkpoint, tmp_path, monkeypatch):
    original = make_checkpoint("bert-base-tiny")
    checkpoint.save(original, tmp_path / "model.npz")
    flip_a_bit(tmp_path / "model.npz", original.tensors[STORED])
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, zipfile.BadZipFile)):
        exec(code_of_the_document(), {})
