"""What the articles' own code does not save, or cannot compute, is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from article_files import config_of, make_state_dict, read, save

from triglot import port
from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import ConfigError, OutputError, PortingError


def test_two_names_of_the_encoder_in_one_file_are_refused(tmp_path):
    plain, path = make_state_dict("dygraph"), tmp_path / "run.npz"
    save({**plain, "encoder_layer_0_ffn_fc_0.b_0": plain["_layer_0_ffn_fc_0.b_0"]}, path)
    problem = r"encoder_layer_0_ffn_fc_0\.b_0 and _layer_0_multi_head_att_query_fc\.w_0 belong to two models"
    with pytest.raises(PortingError, match=problem):
        read(path, "dygraph")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop("encoder.norm.alpha"), "missing encoder.norm.alpha"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "unexpected extra"),
        (
            lambda tensors: tensors.update({"encoder.norm.alpha": torch.zeros(24)}),
            "encoder.norm.alpha has shape (24,), expected (1,)",
        ),
        (
            lambda tensors: tensors.update({"encoder.norm.alpha": torch.zeros(())}),
            "encoder.norm.alpha has shape (), expected (1,)",
        ),
        (
            lambda tensors: tensors.update({"src_pos.pe": torch.zeros(19, 24)}),
            "src_pos.pe has shape (19, 24), expected (1, 19, 24)",
        ),
        (
            lambda tensors: tensors.update({"encoder.norm.alpha": torch.ones(1, dtype=torch.int64)}),
            "encoder.norm.alpha has dtype int64, expected one of float64, float32, float16, bfloat16",
        ),
        (
            lambda tensors: tensors.update({"more": tensors.pop("decoder.norm.bias")}),
            "missing decoder.norm.bias; unexpected more",
        ),
    ],
)
def test_anything_but_exactly_the_state_dict_is_refused(change, problem, tmp_path):
    tensors, path = make_state_dict("annotated"), tmp_path / "run.pt"
    change(tensors)
    save(tensors, path)
    advice = "; expected the state dict of article 003, and the recipe annotated .*; pass what differs .*--config"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: {problem}')}{advice}"):
        read(path, "annotated")


def test_a_size_that_contradicts_the_tensors_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict("annotated"), path)
    problem = f"{path}: encoder.layers.0.self_attention_block.w_q.weight has shape (24, 24), expected (40, 24)"
    with pytest.raises(PortingError, match=re.escape(problem)):
        read(path, "annotated", replace(config_of("annotated"), heads=5))


def test_more_layers_than_tensors_are_refused_before_their_names_are_generated(tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict("annotated"), path)
    count = len(make_state_dict("annotated"))
    for field in ("layers", "decoder_layers"):
        with pytest.raises(PortingError, match=f"{count} tensors cannot be 1000000000 layers"):
            read(path, "annotated", replace(config_of("annotated"), **{field: 10**9}))


def test_a_configuration_of_another_model_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict("annotated"), path)
    with pytest.raises(PortingError, match=r"article-annotated has no name for embeddings\.position\.weight"):
        read(path, "annotated", "bert-base-tiny")
    with pytest.raises(ConfigError, match=r"unknown field.*depth"):
        read(path, "annotated", {"depth": 3})


def test_folders_and_other_files_are_refused(tmp_path):
    expected = r"the state dict of the article's own code, a file \.pt, \.pth, \.bin, \.safetensors"
    with pytest.raises(PortingError, match=f"is a folder; expected {expected}"):
        read(tmp_path, "annotated")
    (tmp_path / "model").write_bytes(b"anything")
    with pytest.raises(PortingError, match=r"cannot read .*model: its format is unknown"):
        read(tmp_path / "model", "annotated")


def test_an_impossible_target_is_refused(make_checkpoint, tmp_path):
    with pytest.raises(PortingError, match=r"out: its suffix is '', expected \.pt, \.pth, \.bin, \.safetensors"):
        port(make_checkpoint("annotated-tiny"), tmp_path / "out", target_dialect="article-annotated")
    with pytest.raises(OutputError, match=r"missing/out\.pt: the folder .* does not exist"):
        port(make_checkpoint("annotated-tiny"), tmp_path / "missing" / "out.pt", target_dialect="article-annotated")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_in_npz_is_refused(make_checkpoint, tmp_path):
    plain = make_checkpoint("annotated-tiny")
    half = Checkpoint(plain.config, {name: tensor.astype(BFLOAT16) for name, tensor in plain.tensors.items()})
    with pytest.raises(PortingError, match=r"is bfloat16, which NumPy does not have; write \.pt or \.safetensors"):
        port(half, tmp_path / "out.npz", target_dialect="article-annotated")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("base", "changes", "losses"),
    [
        ("annotated", {"norm_eps": 1e-5}, "norm_eps 1e-05 (only 1e-06)"),
        ("annotated", {"activation": "gelu"}, "activation 'gelu' (only 'relu')"),
        ("annotated", {"masking_value": -1.0}, "masking_value -1.0 (only -1000000000.0)"),
        ("annotated", {"key_size": 5}, "key_size 5 times heads 3 (only hidden_size 24)"),
        ("annotated", {"value_size": 5}, "value_size 5 times heads 3 (only hidden_size 24)"),
        ("translation", {"normalize_memory": False}, "normalize_memory False (only True)"),
        ("translation", {"positions": "sinusoidal"}, "positions 'sinusoidal' (only 'sinusoidal_per_dimension')"),
        ("dygraph", {"masking": "fill"}, "masking 'fill' (only 'add')"),
        ("dygraph", {"norm_eps": 1e-12}, "norm_eps 1e-12 (only 1e-05)"),
    ],
)
def test_a_model_that_the_code_cannot_compute_is_refused(base, changes, losses, make_checkpoint, tmp_path):
    original = make_checkpoint(replace(config_of(base), **changes))
    problem = f"the dialect article-{base} cannot express {losses};"
    with pytest.raises(PortingError, match=f"^{re.escape(problem)}.*write another dialect"):
        port(original, tmp_path / "out.pt", target_dialect=f"article-{base}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("compressed", "member encoder.norm.alpha.npy is compressed"),
        ("objects", "encoder.norm.alpha.npy is a pickle; Triglot does not unpickle"),
        ("text", "encoder.norm.alpha.npy has dtype <U3"),
        ("neutral", "manifest.json is not an array; save the state dict with numpy.savez"),
        ("no zip", "File is not a zip file"),
    ],
)
def test_another_npz_is_refused(damage, problem, make_checkpoint, tmp_path):
    path, name = tmp_path / "run.npz", "encoder.norm.alpha"
    if damage == "compressed":
        np.savez_compressed(path, allow_pickle=True, **{name: np.zeros(1)})
    elif damage == "neutral":
        port(make_checkpoint("annotated-tiny"), path)
    elif damage == "no zip":
        path.write_bytes(b"anything")
    else:
        np.savez(path, allow_pickle=True, **{name: np.array(["a", None]) if damage == "objects" else np.array(["abc"])})
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot read {path}: {problem}')}"):
        read(path, "annotated")
