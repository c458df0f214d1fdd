"""A port is verified by running its source and its target, and a report names what was compared."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from vector_encoder import VECTOR_ENCODER

import triglot
from triglot.parity import originals
from triglot.parity.originals import find_original, weights
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError
from triglot.verification import verify_target


def test_an_original_that_does_not_exist_is_refused(command, workplace):
    code, _, err = command("parity", "bert-base-tiny", "--against", "minilm")
    assert (code, err) == (2, "triglot: minilm does not exist; give the folder or the file of the original, or none\n")


@pytest.mark.long
def test_a_verified_port_names_the_heads_that_were_not_compared(roberta_folder, command, workplace):
    (workplace / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (workplace / "model" / name).write_bytes((roberta_folder / name).read_bytes())
    fields = json.loads((workplace / "model" / "config.json").read_text())
    (workplace / "model" / "config.json").write_text(json.dumps({**fields, "architectures": ["RobertaModel"]}))
    arrays = dict(np.load(roberta_folder / "example.npz"))
    np.savez("headless.npz", **{name: array for name, array in arrays.items() if name != "logits"})

    def findings(*options):
        assert command("port", "model", "model.npz", *options, "--json", "port.json")[0] == 0
        return json.loads((workplace / "port.json").read_text())["findings"]

    for options in (("--verify",), ("--example", "headless.npz")):
        (words,) = findings(*options)
        assert words.endswith(" of its budget; not compared: heads.masked_lm")
    report = triglot.check(
        triglot.load("model.npz"), ["torch"], isolate=False, checks=["masks"], example="headless.npz"
    )
    assert report.originals[0].endswith("headless.npz; not compared: heads.masked_lm")
    for options in (("--verify",), ("--example", "headless.npz")):
        (words,) = findings(*options, "--heads", "none")
        assert words.endswith(" of its budget")
    (words,) = findings("--heads", "none", "--example", roberta_folder / "example.npz")
    assert words.endswith(" of its budget; not compared: logits (not in the port)")


@pytest.mark.long
def test_a_report_names_the_original(make_checkpoint, tmp_path):
    """In a process of its own, as the command runs it."""
    checkpoint, path = make_checkpoint(VECTOR_ENCODER), tmp_path / "model.pt"
    triglot.port(checkpoint, path, target_dialect="torch-transformer")
    report = triglot.check(checkpoint, ["torch"], isolate=False, checks=["masks"], against=path)
    assert report.verdict == "pass"
    assert report.frameworks == ("torch", "torch.nn")
    assert report.originals == (
        f"compared with the original: {path} in torch.nn, built from the same configuration (--example checks that)",
    )
    assert report.to_dict()["originals"] == list(report.originals)
    changed = replace(checkpoint.config, activation="relu")
    original = find_original(path, "torch-transformer", changed)
    report = triglot.check(checkpoint, ["torch"], isolate=False, checks=["masks"], against=original)
    assert report.verdict == "diverged"
    assert "the original, torch.nn, computes something else: api.encode: the error is" in report.divergences[0]
    same = f"all {len(checkpoint.tensors)} weights equal those of the original, as Triglot reads its files"
    assert report.originals[1:] == (f"{same}; check the configuration that you passed, and the dialect",)
    path.write_bytes(b"")
    report = triglot.check(checkpoint, ["torch"], isolate=False, checks=["masks"], against=original)
    assert report.verdict == "incomplete"
    assert "torch.nn gave no results: cannot read" in report.failures[0]


@pytest.mark.parametrize("added", [0.25, 3e38])  # the second makes results NaN
def test_a_report_names_the_weights_that_differ_from_the_original(added, make_checkpoint, tmp_path):
    checkpoint, path = make_checkpoint(VECTOR_ENCODER), tmp_path / "model.pt"
    triglot.port(checkpoint, path, target_dialect="torch-transformer")
    name, number = "encoder.layers.1.attention.query.weight", len(checkpoint.tensors)
    changed = Checkpoint(checkpoint.config, {**checkpoint.tensors, name: checkpoint.tensors[name] + np.float32(added)})
    triglot.port(changed, tmp_path / "changed.pt", target_dialect="torch-transformer")
    report = triglot.check(checkpoint, ["torch"], isolate=False, checks=["masks"], against=tmp_path / "changed.pt")
    words = f"1 of {number} weights differ from those of the original: {name} (by up to {added:.2g})"
    assert report.originals[1:] == (words,)


def test_a_difference_that_no_result_shows_is_reported(make_checkpoint, tmp_path):
    """Softmax cancels the bias of the keys."""
    checkpoint, path = make_checkpoint(VECTOR_ENCODER), tmp_path / "model.pt"
    triglot.port(checkpoint, path, target_dialect="torch-transformer")
    name = "encoder.layers.1.attention.key.bias"
    changed = Checkpoint(checkpoint.config, {**checkpoint.tensors, name: checkpoint.tensors[name] + np.float32(0.25)})
    report = triglot.check(changed, ["torch"], isolate=False, checks=["masks"], against=path)
    assert report.verdict == "pass"
    number = len(checkpoint.tensors)
    words = f"1 of {number} weights differ from those of the original: {name} (by up to 0.25)"
    assert report.originals[1:] == (f"{words}; no compared result shows it",)


def test_equal_weights_are_not_blamed_for_results_that_were_not_compared(make_checkpoint, tmp_path):
    """The pooler of a left-padded row is undefined, so its result says nothing about the weights."""
    checkpoint = make_checkpoint("bert-base-tiny")
    triglot.port(checkpoint, tmp_path / "model", target_dialect="huggingface")
    batch = triglot.batch(checkpoint.config, [[0, 5, 6]], [[False, True, True]])
    report = triglot.check(
        checkpoint, ["torch"], batches=[batch], isolate=False, checks=["forward"], against=tmp_path / "model"
    )
    assert report.verdict == "diverged"
    assert any("api.heads.pooler: none of its tokens can be compared" in words for words in report.divergences)
    assert len(report.originals) == 1


def test_weights_are_compared_by_name_and_shape(make_checkpoint, roberta_folder, tmp_path):
    checkpoint, path = make_checkpoint(VECTOR_ENCODER), tmp_path / "model.pt"
    triglot.port(checkpoint, path, target_dialect="torch-transformer")
    original, number = find_original(path, "torch-transformer", checkpoint.config), len(checkpoint.tensors)
    doubled = {name: 2 * tensor for name, tensor in checkpoint.tensors.items()}
    words = weights.compare_weights(original, Checkpoint(checkpoint.config, doubled), results_differ=True)
    assert words.startswith(f"{number} of {number} weights differ from those of the original: ")
    assert words.endswith(f") and {number - 3} more")
    original = find_original(roberta_folder, "huggingface", triglot.port(roberta_folder).config)
    smaller = triglot.initialize(replace(original.config, feed_forward_size=8, layers=1))
    words = weights.compare_weights(original, smaller, results_differ=True)
    first = "encoder.layers.0.feed_forward.inner.bias ((8,) in the port"
    assert words.startswith(f"weights that only one side has, or in other shapes: {first}")
    path.write_bytes(b"")
    original = find_original(path, "torch-transformer", checkpoint.config)
    words = weights.compare_weights(original, checkpoint, results_differ=True)
    assert words.startswith("the weights were not compared: cannot read ")
    onnx = find_original(tmp_path / "model.onnx", "onnx", checkpoint.config)
    assert weights.compare_weights(onnx, checkpoint, results_differ=True) == ""


def test_if_all_weights_are_equal_the_configurations_can_differ(roberta_folder):
    ported = triglot.port(roberta_folder)
    changed = Checkpoint(replace(ported.config, norm_eps=1e-2), ported.tensors)
    words = weights.compare_weights(
        find_original(roberta_folder, "huggingface", changed.config), changed, results_differ=True
    )
    equal = f"all {len(ported.tensors)} weights equal those of the original, as Triglot reads its files"
    advice = "compare the configurations, and correct that of the port with --set (in Python, config=)"
    assert words == f"{equal}; {advice}"


def test_nan_and_an_overflow_are_compared_like_other_weights():
    ours = np.array([1, np.nan, np.inf], np.float16)
    assert weights._distance(ours, np.array([1, np.nan, 1e9], np.float32)) == 0
    assert weights._distance(ours, np.array([3, np.nan, 1e9], np.float32)) == 2


def test_an_original_without_its_library_is_named(make_checkpoint, command, workplace, monkeypatch):
    triglot.port(make_checkpoint(VECTOR_ENCODER), "model.pt", target_dialect="torch-transformer")
    answers = [f"--set={answer}" for answer in ("heads=3", "norm_first=true", "activation=gelu", "norm_eps=1e-5")]
    monkeypatch.setattr(originals.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("port", "model.pt", "model.npz", *answers, "--verify")
    assert code == 2
    assert "--verify could run nothing: not compared with the original: torch is not installed; install" in err
    assert not os.path.exists("model.npz")
    code, out, _ = command("port", "model.pt", "model.npz", *answers)
    assert "checked for completeness, not against the original" in out
    with pytest.raises(InputError, match="torch is not installed"):
        triglot.check(make_checkpoint(VECTOR_ENCODER), against="model.pt")


def test_an_articles_dialect_has_no_library(make_checkpoint, tmp_path):
    path = tmp_path / "run.pt"
    triglot.port(make_checkpoint("multihead-tiny"), path, target_dialect="article-multihead")
    with pytest.raises(InputError, match=r"no library runs the dialect article-multihead; record .*--example"):
        triglot.check(make_checkpoint("multihead-tiny"), against=path)


def test_what_is_verified_before_a_conversion_says_so(make_checkpoint, command, workplace):
    triglot.port(make_checkpoint(VECTOR_ENCODER), "model.pt", target_dialect="torch")
    options = ("--config", "config.json", "--dtype", "bfloat16", "--verify")
    (workplace / "config.json").write_text(json.dumps(VECTOR_ENCODER.to_dict()))
    code, out, _ = command("port", "model.pt", "model.npz", *options)
    assert code == 0
    assert re.search(r"verified: model\.pt in module of torch.* budget.* \(before --dtype\)", " ".join(out.split()))


def test_verify_runs_source_and_target(make_checkpoint, command, workplace):
    triglot.port(make_checkpoint(VECTOR_ENCODER), "model.pt", target_dialect="torch-transformer")
    answers = [f"--set={answer}" for answer in ("heads=3", "norm_first=true", "activation=gelu", "norm_eps=1e-5")]
    code, out, _ = command("port", "model.pt", "own.pt", "--target-dialect", "torch", *answers, "--verify")
    assert code == 0
    assert "verified: model.pt in torch.nn, built from the same configuration (--example checks that): api." in out
    assert "verified: own.pt in module of torch, built from the same configuration" in out


def test_a_source_that_computes_something_else_is_not_ported(roberta_folder, command, workplace):
    code, _, err = command("port", roberta_folder, "model.npz", "--set", "norm_eps=1e-5", "--verify")
    assert code == 2
    assert f"{roberta_folder} in transformers computes something other than the port: api." in err
    assert not os.path.exists("model.npz")


def test_the_target_is_verified_before_it_is_written(make_checkpoint, tmp_path, monkeypatch):
    checkpoint = make_checkpoint(VECTOR_ENCODER)
    with pytest.raises(InputError, match="no library runs the dialect neutral"):
        verify_target(checkpoint, tmp_path / "model.npz", "neutral")
    monkeypatch.setattr(originals.LIBRARIES["torch"].__class__, "missing", ["torch"])
    with pytest.raises(InputError, match="torch is not installed"):
        verify_target(checkpoint, tmp_path / "model.pt", "torch")
    assert not any(tmp_path.iterdir())
