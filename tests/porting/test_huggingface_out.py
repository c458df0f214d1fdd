"""Checkpoints are written as folders of transformers, completely or not at all. Inexpressible models are refused."""

import errno
import json
import os
import re
import stat
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from triglot import port
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import CheckpointError, OutputError, PortingError
from triglot.shared.model.config import DenseLayer
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.containers import shards
from triglot.shared.porting.dialects import DIALECTS

BERT = recipe("bert-base-tiny")
ERNIE = replace(recipe("ernie-base-tiny"), masking="exclude", masking_value=None)
# The same numbers in another order in memory.
LAYOUTS = {
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
}


def port_out(checkpoint, target):
    return port(checkpoint, target, target_dialect="huggingface")


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed"])
def test_safetensors_ignores_the_order_in_memory(layout, tmp_path):
    """The reason for a copy in ``containers/safetensors.py``, which can go when this test fails."""
    array = np.arange(6.0).reshape(2, 3)
    other = LAYOUTS[layout](array)
    np.testing.assert_array_equal(other, array)
    save_file({"array": other}, tmp_path / "file.safetensors")
    assert not np.array_equal(load_file(tmp_path / "file.safetensors")["array"], array)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_in_memory_does_not_change_the_file(layout, make_checkpoint, tmp_path):
    plain = make_checkpoint(BERT)
    other = Checkpoint(BERT, {name: LAYOUTS[layout](tensor) for name, tensor in plain.tensors.items()})
    port_out(plain, tmp_path / "plain")
    port_out(other, tmp_path / "other")
    files = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("plain", "other")]
    assert files[0] == files[1]
    written = load_file(tmp_path / "other" / "model.safetensors")
    weight, table = "encoder.layer.1.intermediate.dense.weight", "embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(written[weight], plain.tensors["encoder.layers.1.feed_forward.inner.weight"].T)
    np.testing.assert_array_equal(written[table], plain.tensors["embeddings.token.weight"])
    assert port(tmp_path / "other").digest == plain.digest


def test_a_tensor_without_axes_is_refused(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    port_out(make_checkpoint(BERT), folder)
    path = folder / "model.safetensors"
    save_file({**load_file(path), "pooler.dense.bias": np.zeros((), np.float32)}, path)
    with pytest.raises(PortingError, match=r"pooler\.dense\.bias has shape \(\), expected \(24,\)"):
        port(folder)


@pytest.mark.parametrize("family", [BERT, ERNIE], ids=["bert", "ernie"])
@pytest.mark.parametrize(
    "changes",
    [
        {"heads_on_top": ()},
        {"heads_on_top": ("pooler",)},
        {"heads_on_top": ("masked_lm",)},
        {"heads_on_top": ("masked_lm",), "tied_embeddings": True},
        {"heads_on_top": ("pooler", "masked_lm")},
        {"heads_on_top": ("pooler", "masked_lm"), "tied_embeddings": True},
        {"heads_on_top": ("pooler", "next_sentence")},
        {"heads_on_top": ("pooler", "masked_lm", "next_sentence")},
        {"heads_on_top": ("pooler", "masked_lm", "next_sentence"), "tied_embeddings": True},
        {"activation": "gelu_tanh"},
        {"activation": "relu"},
        {"norm_eps": 1e-7, "pad_id": None, "segments": 1},
        {"pad_id": 100, "segments": 16, "tasks": 16},
        {"tasks": 3, "embedding_dropout": 0.25, "residual_dropout": 0.25, "attention_dropout": 0.0},
        {"heads": 1, "key_size": 24, "value_size": 24},
        {"heads": 24, "key_size": 1, "value_size": 1},
    ],
)
def test_an_expressible_model_is_written_and_read(changes, family, make_checkpoint, tmp_path):
    checkpoint = make_checkpoint(replace(family, **changes))
    assert port_out(checkpoint, tmp_path / "out") is checkpoint
    again = port(tmp_path / "out")
    assert again.config == checkpoint.config
    assert again.digest == checkpoint.digest


@pytest.mark.parametrize(
    ("config", "losses"),
    [
        (recipe("ernie-base-tiny"), "masking 'add' (only 'exclude'), masking_value -10000.0 (only None)"),
        (
            replace(BERT, masking="fill", masking_value=-1.0),
            "masking 'fill' (only 'exclude'), masking_value -1.0 (only None)",
        ),
        (replace(BERT, key_size=5), "key_size 5 (only 8)"),
        (replace(BERT, value_size=7), "value_size 7 (only 8)"),
        (replace(BERT, heads=5), "heads 5 (only divisors of hidden_size 24)"),
        (
            replace(BERT, pre_process="n", post_process="da"),
            "pre_process 'n' (only ''), post_process 'da' (only 'dan')",
        ),
        (replace(BERT, post_process="an"), "post_process 'an' (only 'dan')"),
        (replace(BERT, final_process="n"), "final_process 'n' (only '')"),
        (replace(BERT, embedding_process="n"), "embedding_process 'n' (only 'nd')"),
        (replace(BERT, positions="sinusoidal"), "positions 'sinusoidal' (only 'learned')"),
        (replace(BERT, positions="none"), "positions 'none' (only 'learned')"),
        (replace(BERT, position_offset=2), "position_offset 2 (only 0)"),
        (replace(BERT, projection_bias=False), "projection_bias False (only True)"),
        (replace(BERT, output_bias=False), "output_bias False (only True)"),
        (replace(BERT, feed_forward_dropout=0.5), "feed_forward_dropout 0.5 (only 0.0)"),
        (replace(BERT, embedding_dropout=0.5), "embedding_dropout 0.5 (only 0.1)"),
        (replace(BERT, segments=0), "heads_on_top 'pooler' (only with 'sequence_classifier')"),
        (replace(BERT, embedding_size=16), "heads_on_top 'pooler' (only with 'sequence_classifier')"),
        (replace(BERT, positions_skip_padding=True), "position_offset 0 (only 1)"),
        (replace(BERT, positions_skip_padding=True, pad_id=None), "pad_id None (only a number)"),
        (replace(BERT, segments=0, heads_on_top=(), norm_eps=1e-5), "norm_eps 1e-05 (only 1e-12)"),
        (
            replace(BERT, embedding_size=16, heads_on_top=("masked_lm",), activation="relu"),
            "activation 'relu' (only 'gelu')",
        ),
        (
            replace(BERT, heads_on_top=("pooler", "sequence_classifier", "token_classifier"), classes=2),
            "two classifiers (only one)",
        ),
        (
            replace(BERT, heads_on_top=("pooler", "masked_lm", "replaced_token")),
            "heads_on_top 'pooler' (only with 'sequence_classifier')",
        ),
        (recipe("translation-tiny"), "kind 'encoder_decoder' (only 'encoder')"),
        (recipe("annotated-tiny"), "kind 'encoder_decoder' (only 'encoder')"),
        (recipe("dygraph-tiny"), "source_vocabulary 0 (only 1 or more)"),
    ],
)
def test_an_inexpressible_model_is_refused_by_its_fields(config, losses, make_checkpoint, tmp_path):
    problem = f"the dialect huggingface cannot express {losses};"
    with pytest.raises(PortingError, match=f"^{re.escape(problem)}"):
        port_out(make_checkpoint(config), tmp_path / "out")
    assert os.listdir(tmp_path) == []


# Another value for every field, except those that can have only one.
OTHERS = {
    **{"hidden_size": 12, "layers": 1, "heads": 2, "key_size": 3, "value_size": 3, "feed_forward_size": 41},
    **{"source_vocabulary": 102, "source_max_length": 38, "segments": 3, "tasks": 3, "position_offset": 1},
    **{"positions": "none", "pad_id": 1, "embedding_process": "dn", "pre_process": "d", "post_process": "na"},
    **{"final_process": "d", "norm_eps": 0.5, "activation": "relu", "projection_bias": False, "output_bias": False},
    **{"masking": "add", "masking_value": -1.0, "embedding_dropout": 0.5, "residual_dropout": 0.5},
    **{"attention_dropout": 0.5, "feed_forward_dropout": 0.5, "heads_on_top": (), "tied_embeddings": True},
    **{"embedding_scale": True, "norm": "scalar_layer_norm", "attention_output_activation": "relu"},
    **{"attention_output_dropout": 0.5, "feed_forward_output_dropout": 0.5, "initializer": "prenorm"},
    **{"positions_skip_padding": True, "embedding_size": 16, "pooler_activation": "gelu", "classes": 3},
    **{"feed_forward_bias": False, "norm_bias": False, "final_norm_bias": False},
    **{"sentence_pooling": "max", "sentence_normalized": True},
    "sentence_layers": (DenseLayer(size=3, bias=True, activation="tanh"),),
}
# An encoder can have only one value for these. ``kind`` itself is refused above.
OF_A_DECODER = {
    *("kind", "decoder_layers", "target_vocabulary", "target_max_length", "shared_embeddings", "normalize_memory"),
    *("start_id", "end_id"),
}
# The fields that must change together.
TOGETHER = {
    "final_norm_bias": {"final_process": "n"},
    "masking": {"masking_value": -1.0},
    "masking_value": {"masking": "fill"},
    "tied_embeddings": {"heads_on_top": ("masked_lm",)},
    "positions_skip_padding": {"position_offset": 1},
    "embedding_size": {"heads_on_top": ("masked_lm",)},
    "pooler_activation": {"heads_on_top": ("pooler", "sequence_classifier"), "classes": 2},
    "classes": {"heads_on_top": ("pooler", "sequence_classifier")},
    "sentence_pooling": {"heads_on_top": ("sentence_embedding",)},
    "sentence_normalized": {"heads_on_top": ("sentence_embedding",), "sentence_pooling": "cls"},
    "sentence_layers": {"heads_on_top": ("sentence_embedding",), "sentence_pooling": "mean"},
}

# The fields that transformers cannot express, and the field that the refusal names: one that follows from the former.
INEXPRESSIBLE = {
    **{"hidden_size": "key_size", "heads": "key_size", "key_size": "key_size", "value_size": "value_size"},
    **{"positions": "positions", "position_offset": "position_offset", "embedding_process": "embedding_process"},
    **{"pre_process": "pre_process", "post_process": "post_process", "final_process": "final_process"},
    **{"projection_bias": "projection_bias", "output_bias": "output_bias", "masking": "masking"},
    **{"masking_value": "masking_value", "embedding_dropout": "embedding_dropout"},
    **{"feed_forward_bias": "feed_forward_bias", "norm_bias": "norm_bias", "final_norm_bias": "final_norm_bias"},
    **{"residual_dropout": "embedding_dropout", "feed_forward_dropout": "feed_forward_dropout"},
    **{"embedding_scale": "embedding_scale", "norm": "norm"},
    **{"attention_output_activation": "attention_output_activation"},
    **{"attention_output_dropout": "attention_output_dropout"},
    **{"feed_forward_output_dropout": "feed_forward_output_dropout", "initializer": "initializer"},
    **dict.fromkeys(("sentence_pooling", "sentence_normalized", "sentence_layers"), "heads_on_top"),
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_field_is_kept_or_refused_but_never_lost(field, make_checkpoint, tmp_path):
    config = replace(BERT, **{field: OTHERS[field], **TOGETHER.get(field, {})})
    assert getattr(config, field) != getattr(BERT, field)
    checkpoint = make_checkpoint(config)
    if field in INEXPRESSIBLE:
        with pytest.raises(PortingError, match=rf"^the dialect huggingface cannot express .*\b{INEXPRESSIBLE[field]} "):
            port_out(checkpoint, tmp_path / "out")
    else:
        port_out(checkpoint, tmp_path / "out")
        assert port(tmp_path / "out").config == config


def test_every_field_is_tested():
    assert OTHERS.keys() | OF_A_DECODER == BERT.to_dict().keys()


def test_a_correction_makes_a_model_expressible(make_checkpoint, tmp_path):
    """ERNIE's additive mask and the excluding mask of transformers are equivalent for scores below 1e4."""
    checkpoint = make_checkpoint("ernie-base-tiny")
    corrected = {"masking": "exclude", "masking_value": None}
    port(checkpoint, tmp_path / "out", target_dialect="huggingface", config=corrected)
    assert port(tmp_path / "out").config == ERNIE
    back = port(tmp_path / "out", config={"masking": "add", "masking_value": -10000.0})
    assert back.digest == checkpoint.digest


@pytest.mark.parametrize("content", ["a file", "config.json", ".hidden"])
def test_a_folder_that_is_not_empty_is_refused_and_not_changed(content, make_checkpoint, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / content).write_bytes(b"mine")
    with pytest.raises(OutputError, match=f"^{re.escape(f'cannot write {target}: it already exists; remove it')}"):
        port_out(make_checkpoint(BERT), target)
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(target) == [content]
    assert (target / content).read_bytes() == b"mine"


def test_a_file_or_a_broken_link_is_not_replaced_by_a_folder(make_checkpoint, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("file", "link"):
        with pytest.raises(OutputError, match=f"^cannot write .*{name}: it already exists; remove it"):
            port_out(make_checkpoint(BERT), tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_an_empty_folder_is_filled(make_checkpoint, tmp_path, monkeypatch):
    checkpoint = make_checkpoint(BERT)
    for name in ("out", "here"):
        (tmp_path / name).mkdir()
    port_out(checkpoint, tmp_path / "out")
    monkeypatch.chdir(tmp_path / "here")
    port_out(checkpoint, ".")
    monkeypatch.chdir(tmp_path)
    port_out(checkpoint, "relative")
    assert sorted(os.listdir(tmp_path)) == ["here", "out", "relative"]
    for name in ("out", "here", "relative"):
        assert sorted(os.listdir(tmp_path / name)) == ["config.json", "model.safetensors"]
        assert port(tmp_path / name).digest == checkpoint.digest


@pytest.mark.parametrize(("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_permissions_follow_the_umask(umask, folder, file, make_checkpoint, tmp_path):
    old = os.umask(umask)
    try:
        port_out(make_checkpoint(BERT), tmp_path / "out")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == folder
    for name in ("config.json", "model.safetensors"):
        assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) == file


FAILURES = {
    "full disk": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OutputError, "No space left on device"),
    "Ctrl-C": (KeyboardInterrupt("stop"), KeyboardInterrupt, None),
    "bug": (RuntimeError("stop"), RuntimeError, None),
}


@pytest.mark.parametrize("step", ["safetensors", "rename"])
@pytest.mark.parametrize("kind", FAILURES)
def test_an_interrupted_write_leaves_nothing(kind, step, make_checkpoint, tmp_path, monkeypatch):
    failure, raised, reason = FAILURES[kind]
    checkpoint = make_checkpoint(BERT)
    (tmp_path / "empty").mkdir()
    left = []

    def fail(*arguments, **_):
        if step == "safetensors":
            arguments[0].write(b"half")
        left.append(len(os.listdir(tmp_path)))
        raise failure

    if step == "safetensors":
        monkeypatch.setattr(shards.safetensors, "write", fail)
    else:
        monkeypatch.setattr(os, "rename", fail)
    for target in (tmp_path / "out", tmp_path / "empty"):
        problem = f"cannot write {target}: {reason}; free space" if reason else "stop"
        with pytest.raises(raised, match=f"^{re.escape(problem)}"):
            port_out(checkpoint, target)
    assert left == [2, 2], "nothing was there to be left behind"
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


def test_a_parent_that_is_not_a_writable_folder_is_refused(make_checkpoint, tmp_path, monkeypatch):
    checkpoint = make_checkpoint(BERT)
    (tmp_path / "file").write_bytes(b"mine")
    closed = tmp_path / "closed"
    closed.mkdir()
    # Root may write everywhere, and tests run as root in containers, so the system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (closed, os.W_OK))
    for parent, problem in (
        (tmp_path / "missing", "missing does not exist; create it"),
        (tmp_path / "file", "file is not a folder"),
        (closed, "closed is not writable"),
    ):
        with pytest.raises(OutputError, match=f"^{re.escape(f'cannot write {parent}')}/out: .*{problem}"):
            port_out(checkpoint, parent / "out")
    assert sorted(os.listdir(tmp_path)) == ["closed", "file"]
    assert os.listdir(closed) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("n" * 300, "its name has 300 bytes, expected at most 255"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_an_impossible_name_is_refused(name, problem, make_checkpoint, tmp_path):
    with pytest.raises(OutputError, match=f"^{re.escape(f'cannot write {tmp_path / name}: {problem}')}"):
        port_out(make_checkpoint(BERT), tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_the_folder_is_synced_before_it_gets_its_name(make_checkpoint, tmp_path, monkeypatch):
    """Only a power failure would show the difference, so the test records the calls."""
    steps = []
    fsync, rename = os.fsync, os.rename

    def recording_fsync(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def recording_rename(source, target):
        steps.append("name")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording_rename)
    port_out(make_checkpoint(BERT), tmp_path / "out")
    assert steps == ["file", "file", "folder", "name", "folder"]


def test_the_same_checkpoint_gives_the_same_files(make_checkpoint, tmp_path):
    for name in ("first", "second"):
        port_out(make_checkpoint(BERT), tmp_path / name)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert json.loads((tmp_path / "first" / "config.json").read_text())["architectures"] == ["BertModel"]


def test_an_unknown_dialect_is_refused(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint(BERT)
    problem = f"^dialect is 'onnx'; expected one of {', '.join(DIALECTS)}$"
    with pytest.raises(PortingError, match=problem):
        port(checkpoint, tmp_path / "out", target_dialect="onnx")
    with pytest.raises(PortingError, match=problem):
        port(checkpoint, source_dialect="onnx")
    with pytest.raises(PortingError, match="source_dialect is 'huggingface', but a checkpoint is always neutral"):
        port(checkpoint, source_dialect="huggingface")
    assert port(checkpoint, source_dialect="neutral") is checkpoint
    assert os.listdir(tmp_path) == []


def test_a_source_in_another_dialect_is_refused(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint(BERT)
    port(checkpoint, tmp_path / "model.npz", target_dialect="neutral")
    port_out(checkpoint, tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"index\.json is missing, so .* is not a neutral checkpoint"):
        port(tmp_path / "model", source_dialect="neutral")
    with pytest.raises(PortingError, match=r"manifest\.json is not an array"):
        port(tmp_path / "model.npz", source_dialect="huggingface")
    for name, right in (("model", "huggingface"), ("model.npz", "neutral")):
        assert port(tmp_path / name, source_dialect=right).digest == checkpoint.digest
