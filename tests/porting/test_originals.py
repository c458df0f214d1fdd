"""Originals: models run in their own libraries, and judged against the truth of the port."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from noise import random_batch
from vector_encoder import VECTOR_ENCODER

import triglot
from triglot.parity.judge import Subject
from triglot.parity.originals import Original, find_original
from triglot.parity.originals.comparison import as_tokenized, judge_original, not_compared
from triglot.parity.originals.libraries import own_module, paddle_nn, torch_nn, transformers_model
from triglot.parity.revealing import revealing_checkpoints
from triglot.parity.truth import Reference
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError, PortingError
from triglot.shared.inputs import pair_batch
from triglot.shared.model.recipes import recipe

PAIR = replace(VECTOR_ENCODER, kind="encoder_decoder", decoder_layers=1, target_max_length=512, norm_bias=False)
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


def judged(checkpoint, results, batch):
    """Judge what an original computed, and return the verdicts by name."""
    rows = judge_original(Subject("original", "eager", "float32"), Reference(checkpoint), batch, results)
    return {row.name: row.verdict for row in rows}


@pytest.mark.long(config=PAIR)
@pytest.mark.parametrize("config", [VECTOR_ENCODER, PAIR], ids=["encoder", "pair"])
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
    checkpoint, batch, path = (
        make_checkpoint(VECTOR_ENCODER),
        random_batch(VECTOR_ENCODER, (24, 11, 1, 17)),
        tmp_path / "model.pt",
    )
    triglot.port(checkpoint, path, target_dialect="torch-transformer")
    (results,) = torch_nn.run(find_original(path, "torch-transformer", VECTOR_ENCODER), [batch], "float32")
    name = "encoder.layers.1.feed_forward.inner.weight"
    transposed = Checkpoint(VECTOR_ENCODER, {**checkpoint.tensors, name: checkpoint.tensors[name].T})
    assert judged(transposed, results, batch) == {"api.encode": "diverged"}


def test_transformers_runs_a_folder(roberta_folder):
    ported = triglot.port(roberta_folder)
    batch = as_tokenized(random_batch(ported.config, (24, 11, 1, 17)))
    (results,) = transformers_model.run(find_original(roberta_folder, "huggingface", ported.config), [batch], "float32")
    assert judged(ported, results, batch) == {"api.encode": "pass", "api.heads.masked_lm": "pass"}
    shifted = replace(ported.config, position_offset=0, source_max_length=34)
    assert set(judged(Checkpoint(shifted, ported.tensors), results, batch).values()) == {"diverged"}


def test_transformers_runs_a_bare_file(roberta_folder):
    ported = triglot.port(roberta_folder)
    batch = as_tokenized(random_batch(ported.config, (24, 11)))
    original = find_original(roberta_folder / "model.safetensors", "huggingface", ported.config)
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


@pytest.mark.long
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


def test_a_file_with_another_layer_is_not_the_original(roberta_folder, make_checkpoint, tmp_path):
    """transformers and NNX would leave the rest of it out."""
    larger, path = make_checkpoint(replace(VECTOR_ENCODER, layers=3)), tmp_path / "larger.safetensors"
    triglot.port(larger, path, target_dialect="nnx")
    batch = random_batch(VECTOR_ENCODER, (5,))
    with pytest.raises(PortingError, match=r"the module and the file differ in encoder\.layers\.2"):
        own_module.run(find_original(path, "nnx", VECTOR_ENCODER), [batch], "float32")
    ported = triglot.port(roberta_folder)
    smaller = replace(ported.config, layers=1)
    batch = random_batch(smaller, (5,))
    with pytest.raises(PortingError, match=r"transformers and the file differ in roberta\.encoder\.layer\.1"):
        transformers_model.run(
            find_original(roberta_folder / "model.safetensors", "huggingface", smaller), [batch], "float32"
        )


def test_a_folder_without_a_class_is_run_as_the_class_of_the_port(roberta_folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((roberta_folder / name).read_bytes())
    fields = json.loads((tmp_path / "config.json").read_text())
    for classes in (None, ["pipeline"], ["RobertaForCausalLM"]):
        (tmp_path / "config.json").write_text(json.dumps({**fields, "architectures": classes}))
        config = triglot.port(roberta_folder).config
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


def test_only_padding_has_the_pad_id():
    config = replace(recipe("translation-tiny"), pad_id=0)
    source = np.array([[0, 3, 0], [5, 0, 0]], np.int32)
    valid = np.array([[True, True, True], [True, False, False]])
    batch = as_tokenized(pair_batch(config, source, source, valid, valid))
    assert batch.arrays()["source"].tolist() == [[1, 3, 1], [5, 0, 0]]
    assert batch.arrays()["target"].tolist() == [[1, 3, 1], [5, 0, 0]]
