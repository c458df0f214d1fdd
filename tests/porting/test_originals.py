"""Originals: models run in their own libraries, or recorded, and judged against the truth of the port."""

import json
import os
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from noise import random_batch

import triglot
from triglot import models
from triglot.impls.model import Model
from triglot.parity import originals
from triglot.parity.judge import Subject
from triglot.parity.originals import Original, comparison, find_original
from triglot.parity.originals.comparison import as_tokenized, judge_original, not_compared
from triglot.parity.originals.libraries import own_module, paddle_nn, torch_nn, transformers_model
from triglot.parity.originals.recorded import method_of, read_example
from triglot.parity.revealing import revealing_checkpoints
from triglot.parity.truth import Reference
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError, PortingError
from triglot.shared.inputs import pair_batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import recipe
from triglot.verification import verify_target

ENCODER = ModelConfig(
    hidden_size=24,
    layers=2,
    heads=3,
    key_size=8,
    value_size=8,
    feed_forward_size=24,  # square, so that no shape shows a transposed matrix
    source_vocabulary=0,
    source_max_length=512,
    positions="none",
    pre_process="n",
    post_process="da",
    final_process="n",
    norm_eps=1e-5,
    activation="gelu",
    masking="exclude",
)
PAIR = replace(ENCODER, kind="encoder_decoder", decoder_layers=1, target_max_length=512, norm_bias=False)
PAIR = replace(PAIR, projection_bias=False, output_bias=False, feed_forward_bias=False)
RESULTS = {"encoder": ["api.encode"], "encoder_decoder": ["api.forward", "api.encode"]}
# Changes of the configuration that no tensor shows.
WRONG: dict[str, dict[str, Any]] = {
    "activation": {"activation": "gelu_tanh"},
    "epsilon": {"norm_eps": 1e-3},
    "heads": {"heads": 2, "key_size": 12, "value_size": 12},
}
LIBRARIES: dict[str, tuple[Any, str]] = {
    "torch-transformer": (torch_nn, ".pt"),
    "paddle-transformer": (paddle_nn, ".pdparams"),
    "torch": (own_module, ".safetensors"),
    "paddle": (own_module, ".safetensors"),
    "nnx": (own_module, ".safetensors"),
}


def save_example(checkpoint):
    """Write the configuration of an encoder of vectors, and an example of what it computes, to the current folder."""
    vectors = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)
    model: Model = triglot.build("numpy", checkpoint, dtype="float32")
    np.savez("example.npz", token_ids=vectors, encode=model.encode(vectors))
    with open("config.json", "w") as file:
        json.dump(checkpoint.config.to_dict(), file)


def judged(checkpoint, results, batch):
    """Judge what an original computed, and return the verdicts by name."""
    rows = judge_original(Subject("original", "eager", "float32"), Reference(checkpoint), batch, results)
    return {row.name: row.verdict for row in rows}


@pytest.mark.parametrize("config", [ENCODER, PAIR], ids=["encoder", "pair"])
@pytest.mark.parametrize("dialect", LIBRARIES)
def test_a_library_runs_the_state_of_its_module(dialect, config, tmp_path):
    # Weights that bend every activation. A tanh GELU makes no difference to those of an initializer.
    checkpoint, (library, suffix) = revealing_checkpoints(config, "float32", 0)["loud"], LIBRARIES[dialect]
    batch, path = random_batch(config, (24, 11, 1, 17)), tmp_path / f"model{suffix}"
    triglot.port(checkpoint, path, target_dialect=dialect)
    (results,) = library.run(find_original(path, dialect, config), [batch], "float32")
    assert judged(checkpoint, results, batch) == dict.fromkeys(RESULTS[config.kind], "pass")
    for name, fields in WRONG.items():
        (results,) = library.run(find_original(path, dialect, replace(config, **fields)), [batch], "float32")
        assert judged(checkpoint, results, batch) == dict.fromkeys(RESULTS[config.kind], "diverged"), name


def test_a_transposed_square_matrix_is_not_the_original(make_checkpoint, tmp_path):
    checkpoint, batch, path = make_checkpoint(ENCODER), random_batch(ENCODER, (24, 11, 1, 17)), tmp_path / "model.pt"
    triglot.port(checkpoint, path, target_dialect="torch-transformer")
    (results,) = torch_nn.run(find_original(path, "torch-transformer", ENCODER), [batch], "float32")
    name = "encoder.layers.1.feed_forward.inner.weight"
    transposed = Checkpoint(ENCODER, {**checkpoint.tensors, name: checkpoint.tensors[name].T})
    assert judged(transposed, results, batch) == {"api.encode": "diverged"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A RoBERTa with a masked_lm head, saved by transformers, and an example of what it computes."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=34,
        type_vocab_size=1,
    )
    model = transformers.RobertaForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    path = tmp_path_factory.mktemp("roberta")
    model.save_pretrained(path)
    ids = np.random.default_rng(0).integers(2, 61, (4, 11))
    valid = np.arange(11) < np.array([11, 6, 1, 9])[:, None]
    ids[~valid] = 1
    with torch.inference_mode():
        result = model(torch.from_numpy(ids), torch.from_numpy(valid), output_hidden_states=True)
    outputs = {"last_hidden_state": result.hidden_states[-1].numpy(), "logits": result.logits.numpy()}
    np.savez(path / "example.npz", input_ids=ids, attention_mask=valid.astype(np.int64), **outputs)
    return path


def test_transformers_runs_a_folder(folder):
    ported = triglot.port(folder)
    batch = as_tokenized(random_batch(ported.config, (24, 11, 1, 17)))
    (results,) = transformers_model.run(find_original(folder, "huggingface", ported.config), [batch], "float32")
    assert judged(ported, results, batch) == {"api.encode": "pass", "api.heads.masked_lm": "pass"}
    shifted = replace(ported.config, position_offset=0, source_max_length=34)
    assert set(judged(Checkpoint(shifted, ported.tensors), results, batch).values()) == {"diverged"}


def test_transformers_runs_a_bare_file(folder):
    ported = triglot.port(folder)
    batch = as_tokenized(random_batch(ported.config, (24, 11)))
    original = find_original(folder / "model.safetensors", "huggingface", ported.config)
    assert "built from the same configuration" in original.description
    (results,) = transformers_model.run(original, [batch], "float32")
    assert judged(ported, results, batch) == {"api.encode": "pass", "api.heads.masked_lm": "pass"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A BERT of transformers in a folder, and exported to ONNX."""
    import torch
    import transformers

    torch.manual_seed(0)
    fields: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    model: Any = transformers.BertModel(transformers.BertConfig(**fields, intermediate_size=24)).eval()
    path = tmp_path_factory.mktemp("bert")
    model.save_pretrained(path)

    class Exported(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            result = self.model(input_ids=ids, attention_mask=mask)
            return result.last_hidden_state, result.pooler_output

    ids = torch.zeros(2, 7, dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(
        Exported(),
        (ids, ids + 1),
        path / "model.onnx",
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_axes={name: {0: "rows", 1: "tokens"} for name in names},
        dynamo=False,
    )
    return path


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_onnx_runtime_runs_a_file(exported, make_checkpoint):
    from triglot.parity.originals.libraries import onnx_file

    ported, path = triglot.port(exported), exported / "model.onnx"
    batch = random_batch(ported.config, (24, 11, 1, 17))
    batch = replace(batch, segment_ids=np.zeros_like(batch.segment_ids))
    (results,) = onnx_file.run(Original(path, "onnx", ported.config), [batch], "float32")
    assert judged(ported, results, batch) == {"api.encode": "pass", "api.heads.pooler": "pass"}
    other = make_checkpoint(ported.config)
    assert set(judged(other, results, batch).values()) == {"diverged"}
    config = recipe("multihead-tiny")
    with pytest.raises(InputError, match=r"cannot run a model of kind 'attention'"):
        onnx_file.run(Original(path, "onnx", config), [random_batch(config, (3,))], "float32")


def test_an_original_that_does_not_exist_is_refused(command, workplace):
    code, _, err = command("parity", "bert-base-tiny", "--against", "minilm")
    assert (code, err) == (2, "triglot: minilm does not exist; give the folder or the file of the original, or none\n")


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_an_onnx_file_decides_its_number_format(exported):
    ported = triglot.port(exported)
    original = find_original(exported / "model.onnx", "onnx", ported.config)
    batch = random_batch(ported.config, (24, 11, 1, 17))
    batch = replace(batch, segment_ids=np.zeros_like(batch.segment_ids))  # it reads none
    options = {"dtype": "float64", "checks": ["masks"], "batches": [batch], "against": original}
    report = triglot.check(ported, ["torch"], **options)
    rows = [row for row in report.rows if row.check == "original"]
    assert {(row.verdict, row.dtype) for row in rows} == {("pass", "float32")}


def test_only_what_both_compute_is_judged(make_checkpoint):
    config = recipe("bert-base-tiny")
    batch = random_batch(config, (5, 3))
    subject, reference = Subject("original", "eager", "float32"), Reference(make_checkpoint(config))
    (row,) = judge_original(subject, reference, batch, {"api.heads.x": np.ones(3)})
    assert row.verdict == "diverged"
    assert row.reason.startswith("the original returns api.heads.x, but the port returns api.heads.")
    assert "nothing can be compared; pass the original of this model (against=" in row.reason


def test_results_without_a_token_to_judge_prove_nothing(make_checkpoint, tmp_path):
    """A pooler that reads padding is undefined, so an example of left-padded rows alone shows nothing."""
    checkpoint, path = make_checkpoint("bert-base-tiny"), tmp_path / "example.npz"
    size = checkpoint.config.hidden_size
    np.savez(path, token_ids=[[1, 2, 3]], valid=[[False, True, True]], pooler=np.full((1, size), 50, np.float32))
    with pytest.raises(PortingError, match=r"api\.heads\.pooler: none of its tokens can be compared"):
        triglot.port(checkpoint, example=path)


def test_a_file_with_another_layer_is_not_the_original(folder, make_checkpoint, tmp_path):
    """transformers and NNX would leave the rest of it out."""
    larger, path = make_checkpoint(replace(ENCODER, layers=3)), tmp_path / "larger.safetensors"
    triglot.port(larger, path, target_dialect="nnx")
    batch = random_batch(ENCODER, (5,))
    with pytest.raises(PortingError, match=r"the module and the file differ in encoder\.layers\.2"):
        own_module.run(find_original(path, "nnx", ENCODER), [batch], "float32")
    ported = triglot.port(folder)
    smaller = replace(ported.config, layers=1)
    batch = random_batch(smaller, (5,))
    with pytest.raises(PortingError, match=r"transformers and the file differ in roberta\.encoder\.layer\.1"):
        transformers_model.run(find_original(folder / "model.safetensors", "huggingface", smaller), [batch], "float32")


def test_a_folder_without_a_class_is_run_as_the_class_of_the_port(folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    fields = json.loads((tmp_path / "config.json").read_text())
    for classes in (None, ["pipeline"], ["RobertaForCausalLM"]):
        (tmp_path / "config.json").write_text(json.dumps({**fields, "architectures": classes}))
        config = triglot.port(folder).config
        batch = as_tokenized(random_batch(config, (5, 3)))
        (results,) = transformers_model.run(find_original(tmp_path, "huggingface", config), [batch], "float32")
        assert set(results) == {"api.encode", "api.heads.masked_lm"}


def test_heads_that_the_original_does_not_return_are_named(make_checkpoint):
    config = recipe("bert-base-tiny")
    batch, reference = random_batch(config, (5, 3)), Reference(make_checkpoint(config))
    encoded = reference.outputs(batch)["output"].astype(np.float32)
    rows = judge_original(Subject("original", "eager", "float32"), reference, batch, {"api.encode": encoded})
    missing = ", ".join(f"heads.{head}" for head in config.heads_on_top)
    assert not_compared(rows, config) == f"; not compared: {missing}"


def test_a_verified_port_names_the_heads_that_were_not_compared(folder, command, workplace):
    (workplace / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (workplace / "model" / name).write_bytes((folder / name).read_bytes())
    fields = json.loads((workplace / "model" / "config.json").read_text())
    (workplace / "model" / "config.json").write_text(json.dumps({**fields, "architectures": ["RobertaModel"]}))
    arrays = dict(np.load(folder / "example.npz"))
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
    (words,) = findings("--heads", "none", "--example", folder / "example.npz")
    assert words.endswith(" of its budget; not compared: logits (not in the port)")


def test_parity_reads_an_ambiguous_file_with_an_example(make_checkpoint, command, workplace):
    square = replace(ENCODER, layers=1)
    checkpoint = make_checkpoint(square)
    triglot.port(checkpoint, "model.safetensors", target_dialect="paddle")
    save_example(checkpoint)
    options = ("--config", "config.json", "--framework", "torch", "--check", "masks", "--against", "none")
    code, out, err = command("parity", "model.safetensors", *options, "--example", "example.npz")
    assert (code, err) == (0, "")
    assert "compared with recorded outputs of the original: example.npz" in out


def test_only_padding_has_the_pad_id():
    config = replace(recipe("translation-tiny"), pad_id=0)
    source = np.array([[0, 3, 0], [5, 0, 0]], np.int32)
    valid = np.array([[True, True, True], [True, False, False]])
    batch = as_tokenized(pair_batch(config, source, source, valid, valid))
    assert batch.arrays()["source"].tolist() == [[1, 3, 1], [5, 0, 0]]
    assert batch.arrays()["target"].tolist() == [[1, 3, 1], [5, 0, 0]]


def test_a_report_names_the_original(make_checkpoint, tmp_path):
    """In a process of its own, as the command runs it."""
    checkpoint, path = make_checkpoint(ENCODER), tmp_path / "model.pt"
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
    path.write_bytes(b"")
    report = triglot.check(checkpoint, ["torch"], isolate=False, checks=["masks"], against=original)
    assert report.verdict == "incomplete"
    assert "torch.nn gave no results: cannot read" in report.failures[0]


def test_an_original_without_its_library_is_named(make_checkpoint, command, workplace, monkeypatch):
    triglot.port(make_checkpoint(ENCODER), "model.pt", target_dialect="torch-transformer")
    answers = [f"--set={answer}" for answer in ("heads=3", "norm_first=true", "activation=gelu", "norm_eps=1e-5")]
    monkeypatch.setattr(originals.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("port", "model.pt", "model.npz", *answers, "--verify")
    assert code == 2
    assert "--verify could run nothing: not compared with the original: torch is not installed; install" in err
    assert not os.path.exists("model.npz")
    code, out, _ = command("port", "model.pt", "model.npz", *answers)
    assert "checked for completeness, not against the original" in out
    with pytest.raises(InputError, match="torch is not installed"):
        triglot.check(make_checkpoint(ENCODER), against="model.pt")


def test_an_articles_dialect_has_no_library(make_checkpoint, tmp_path):
    path = tmp_path / "run.pt"
    triglot.port(make_checkpoint("multihead-tiny"), path, target_dialect="article-multihead")
    with pytest.raises(InputError, match=r"no library runs the dialect article-multihead; record .*--example"):
        triglot.check(make_checkpoint("multihead-tiny"), against=path)


def test_what_is_verified_before_a_conversion_says_so(make_checkpoint, command, workplace):
    triglot.port(make_checkpoint(ENCODER), "model.pt", target_dialect="torch")
    options = ("--config", "config.json", "--dtype", "bfloat16", "--verify")
    (workplace / "config.json").write_text(json.dumps(ENCODER.to_dict()))
    code, out, _ = command("port", "model.pt", "model.npz", *options)
    assert code == 0
    assert re.search(r"verified: model\.pt in module of torch.* budget.* \(before --dtype\)", " ".join(out.split()))


def test_verify_runs_source_and_target(make_checkpoint, command, workplace):
    triglot.port(make_checkpoint(ENCODER), "model.pt", target_dialect="torch-transformer")
    answers = [f"--set={answer}" for answer in ("heads=3", "norm_first=true", "activation=gelu", "norm_eps=1e-5")]
    code, out, _ = command("port", "model.pt", "own.pt", "--target-dialect", "torch", *answers, "--verify")
    assert code == 0
    assert "verified: model.pt in torch.nn, built from the same configuration (--example checks that): api." in out
    assert "verified: own.pt in module of torch, built from the same configuration" in out


def test_a_source_that_computes_something_else_is_not_ported(folder, command, workplace):
    code, _, err = command("port", folder, "model.npz", "--set", "norm_eps=1e-5", "--verify")
    assert code == 2
    assert f"{folder} in transformers computes something other than the port: api." in err
    assert not os.path.exists("model.npz")


def test_an_example_settles_what_no_tensor_shows(folder, command, workplace):
    weights, example = folder / "model.safetensors", folder / "example.npz"
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


def test_an_example_is_in_the_number_format_of_its_run(folder, tmp_path):
    """The format of the file may differ: NumPy turns lists of numbers into float64."""
    path, ported = tmp_path / "example.npz", triglot.port(folder)
    arrays = dict(np.load(folder / "example.npz"))
    arrays["last_hidden_state"] = arrays["last_hidden_state"].astype(np.float64)
    np.savez(path, **arrays)
    assert read_example(ported.config, path).dtype == "float32"
    assert triglot.port(folder, example=path).digest == ported.digest
    del arrays["logits"]
    arrays["last_hidden_state"] += 1e-9
    np.savez(path, **arrays)
    assert read_example(ported.config, path).dtype == "float64"
    with pytest.raises(PortingError, match="computes something other than the port"):
        triglot.port(folder, example=path)


def test_an_example_settles_the_layout(make_checkpoint, tmp_path):
    """PyTorch and PaddlePaddle have the same names and, in this model, the same shapes."""
    square = replace(ENCODER, layers=1)
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
    square, judged_in = replace(ENCODER, layers=1), []
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
    square = replace(ENCODER, layers=1)
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


def test_the_target_is_verified_before_it_is_written(make_checkpoint, tmp_path, monkeypatch):
    checkpoint = make_checkpoint(ENCODER)
    with pytest.raises(InputError, match="no library runs the dialect neutral"):
        verify_target(checkpoint, tmp_path / "model.npz", "neutral")
    monkeypatch.setattr(originals.LIBRARIES["torch"].__class__, "missing", ["torch"])
    with pytest.raises(InputError, match="torch is not installed"):
        verify_target(checkpoint, tmp_path / "model.pt", "torch")
    assert not any(tmp_path.iterdir())
