"""Recorded outputs of an original: a port that computes something else is refused."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from vector_encoder import VECTOR_ENCODER

import triglot
from triglot import models
from triglot.impls.model import Model
from triglot.parity.originals import comparison
from triglot.parity.originals.recorded import method_of, read_example
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError, PortingError
from triglot.shared.model.recipes import recipe


def save_example(checkpoint):
    """Write the configuration of an encoder of vectors, and an example of what it computes, to the current folder."""
    vectors = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)
    model: Model = triglot.build("numpy", checkpoint, dtype="float32")
    np.savez("example.npz", token_ids=vectors, encode=model.encode(vectors))
    with open("config.json", "w") as file:
        json.dump(checkpoint.config.to_dict(), file)


def test_results_without_a_token_to_judge_prove_nothing(make_checkpoint, tmp_path):
    """A pooler that reads padding is undefined, so an example of left-padded rows alone shows nothing."""
    checkpoint, path = make_checkpoint("bert-base-tiny"), tmp_path / "example.npz"
    size = checkpoint.config.hidden_size
    np.savez(path, token_ids=[[1, 2, 3]], valid=[[False, True, True]], pooler=np.full((1, size), 50, np.float32))
    with pytest.raises(PortingError, match=r"api\.heads\.pooler: none of its tokens can be compared"):
        triglot.port(checkpoint, example=path)


@pytest.mark.long
def test_parity_reads_an_ambiguous_file_with_an_example(make_checkpoint, command, workplace):
    square = replace(VECTOR_ENCODER, layers=1)
    checkpoint = make_checkpoint(square)
    triglot.port(checkpoint, "model.safetensors", target_dialect="paddle")
    save_example(checkpoint)
    options = ("--config", "config.json", "--framework", "torch", "--check", "masks", "--against", "none")
    code, out, err = command("parity", "model.safetensors", *options, "--example", "example.npz")
    assert (code, err) == (0, "")
    assert "compared with recorded outputs of the original: example.npz" in out


def test_an_example_settles_what_no_tensor_shows(roberta_folder, command, workplace):
    weights, example = roberta_folder / "model.safetensors", roberta_folder / "example.npz"
    answers = [f"--set={answer}" for answer in ("pad_id=1", "activation=gelu", "norm_eps=1e-12")]
    right, wrong = [*answers, "--set=heads=4"], [*answers, "--set=heads=2"]
    code, out, _ = command("port", weights, "model.npz", *right, "--example", example)
    assert code == 0
    assert f"verified: {example}: api." in out
    code, _, err = command("port", weights, "wrong.npz", *wrong, "--example", example)
    assert code == 2
    assert f"{example} computes something other than the port" in err
    assert not os.path.exists("wrong.npz")
    code, out, _ = command(
        "parity", "model.npz", "--framework", "torch", "--check", "masks", "--example", example, "--json", "report.json"
    )
    assert code == 0
    assert json.loads((workplace / "report.json").read_text())["originals"] == [
        f"compared with recorded outputs of the original: {example}",
        "not compared with the original, which a checkpoint does not name (triglot parity has --against)",
    ]


def test_an_example_is_in_the_number_format_of_its_run(roberta_folder, tmp_path):
    """The format of the file may differ: NumPy turns lists of numbers into float64."""
    path, ported = tmp_path / "example.npz", triglot.port(roberta_folder)
    arrays = dict(np.load(roberta_folder / "example.npz"))
    arrays["last_hidden_state"] = arrays["last_hidden_state"].astype(np.float64)
    np.savez(path, **arrays)
    assert read_example(ported.config, path).dtype == "float32"
    assert triglot.port(roberta_folder, example=path).digest == ported.digest
    del arrays["logits"]
    arrays["last_hidden_state"] += 1e-9
    np.savez(path, **arrays)
    assert read_example(ported.config, path).dtype == "float64"
    with pytest.raises(PortingError, match="computes something other than the port"):
        triglot.port(roberta_folder, example=path)


def test_an_example_settles_the_layout(make_checkpoint, tmp_path):
    """PyTorch and PaddlePaddle have the same names and, in this model, the same shapes."""
    square = replace(VECTOR_ENCODER, layers=1)
    checkpoint, path, example = make_checkpoint(square), tmp_path / "model.safetensors", tmp_path / "example.npz"
    model: Model = triglot.build("numpy", checkpoint, dtype="float32")
    vectors = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)
    np.savez(example, token_ids=vectors, encode=model.encode(vectors))
    for dialect in ("torch", "paddle"):
        triglot.port(checkpoint, path, target_dialect=dialect)
        with pytest.raises(PortingError, match=r"may be in the dialect torch or paddle.* or give an input and the"):
            triglot.port(path, config=square)
        assert triglot.port(path, config=square, example=example).digest == checkpoint.digest
        assert models.original(path, checkpoint).dialect == dialect  # the weights of the port show it too
        with pytest.raises(PortingError, match="may be in the dialect torch or paddle"):
            models.original(path, make_checkpoint(square, seed=1))
        with pytest.raises(InputError, match=r"missing\.npz"):
            triglot.port(path, config=square, example=tmp_path / "missing.npz")
    np.savez(example, token_ids=vectors, encode=vectors)
    with pytest.raises(
        PortingError, match=r"does not compute the outputs in .* in any dialect that matches: in torch, .*; in paddle, "
    ):
        triglot.port(path, config=square, example=example)
    with pytest.raises(PortingError, match="computes something other than the port"):
        triglot.port(path, config=square, example=example, source_dialect="torch")
    with pytest.raises(PortingError, match="computes something other than the port"):
        triglot.port(checkpoint, example=example)


def test_an_example_that_settles_the_layout_is_judged_once_in_each(make_checkpoint, command, workplace, monkeypatch):
    square, judged_in = replace(VECTOR_ENCODER, layers=1), []
    checkpoint = make_checkpoint(square)
    triglot.port(checkpoint, "model.safetensors", target_dialect="torch")
    save_example(checkpoint)
    judge = comparison.judge_example
    monkeypatch.setattr(
        comparison, "judge_example", lambda example, port: judged_in.append(port.digest) or judge(example, port)
    )
    triglot.port("model.safetensors", config=square, example="example.npz")
    assert len(judged_in) == len({*judged_in}) == 2
    judged_in.clear()
    options = ("--config", "config.json", "--example", "example.npz")
    code, out, _ = command("port", "model.safetensors", "model.npz", *options)
    assert code == 0
    assert "verified: example.npz: api.encode uses" in out
    assert len(judged_in) == len({*judged_in}) == 2


def test_an_example_that_fits_two_layouts_is_refused(tmp_path):
    """With symmetric matrices, it does not matter."""
    square = replace(VECTOR_ENCODER, layers=1)
    tensors = {
        name: tensor + tensor.T if tensor.ndim == 2 else tensor
        for name, tensor in triglot.initialize(square).tensors.items()
    }
    checkpoint, path, example = Checkpoint(square, tensors), tmp_path / "model.safetensors", tmp_path / "example.npz"
    triglot.port(checkpoint, path, target_dialect="torch")
    vectors = np.ones((1, 3, 24), np.float32)
    np.savez(example, token_ids=vectors, encode=triglot.build("numpy", checkpoint, dtype="float32").encode(vectors))
    with pytest.raises(PortingError, match="in torch and paddle; name the right one with --source-dialect"):
        triglot.port(path, config=square, example=example)


IDS = np.array([[3, 4]])
ENCODED = np.zeros((1, 2, 4), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"input_ids": IDS}, "holds no output of the original; expected last_hidden_state"),
        ({"input_ids": IDS, "encode": ENCODED, "last_hidden_state": ENCODED}, "holds the same output under two of"),
        ({"input_ids": IDS, "encode": ENCODED.astype(np.int64)}, "have the dtypes int64; expected float32"),
        ({"input_ids": IDS, "encode": ENCODED.astype(np.float16)}, "float16; .* save the float32 outputs of a float32"),
        ({"input_ids": IDS, "encode": ENCODED, "pooler": ENCODED.astype(float) + 0.1}, "dtypes float32, float64"),
        ({"encode": ENCODED}, "lacks token_ids"),
        ({"input_ids": IDS, "encode": ENCODED, "other": IDS}, "holds other; expected token_ids"),
    ],
)
def test_bad_examples_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "example.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_example(recipe("bert-base-tiny"), tmp_path / "example.npz")


def test_outputs_of_several_heads_are_named_after_their_head(make_checkpoint, tmp_path):
    config = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm", "next_sentence"))
    path = tmp_path / "example.npz"
    np.savez(path, input_ids=IDS, encode=ENCODED, logits=ENCODED)
    with pytest.raises(InputError, match="logits may be masked_lm or next_sentence; name the array after its head"):
        triglot.port(make_checkpoint(config), example=path)
    with pytest.raises(InputError, match=r"model\.onnx: logits may be masked_lm or next_sentence"):
        method_of("logits", config, tmp_path / "model.onnx")
    assert method_of("next_sentence", config, path) == "api.heads.next_sentence"
    embedded = replace(config, heads_on_top=("pooler", "masked_lm", "sentence_embedding"), sentence_pooling="mean")
    assert method_of("logits", embedded, path) == "api.heads.masked_lm"


def test_an_example_of_a_pair_or_of_attention(make_checkpoint, tmp_path):
    path = tmp_path / "example.npz"
    pair = make_checkpoint("translation-tiny")
    ids = np.array([[4, 5, 6]])
    scores = triglot.build("numpy", pair, dtype="float32").forward(ids, ids)
    np.savez(path, input_ids=ids, decoder_input_ids=ids, logits=scores, pooler_output=scores)
    assert triglot.port(pair, example=path) is pair
    alone = make_checkpoint("multihead-tiny")
    vectors = np.random.default_rng(0).normal(size=(1, 3, alone.config.hidden_size)).astype(np.float32)
    output, averaged = triglot.build("numpy", alone, dtype="float32").attend(vectors, vectors, vectors)
    np.savez(path, query=vectors, key=vectors, value=vectors, attend=output, weights=averaged)
    assert triglot.port(alone, example=path) is alone
    np.savez(path, query=vectors, key=vectors, value=vectors, attend=output, weights=1 - averaged)
    with pytest.raises(PortingError, match=r"computes something other than the port: api\.attend\.weights"):
        triglot.port(alone, example=path)
