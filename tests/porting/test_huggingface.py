"""Folders of transformers are ported bit for bit and compute the same."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from bert_folders import MODELS, change_config, change_tensors, native_name
from checkpoint_files import assert_same_tensors

from triglot import impls, port
from triglot.shared import checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects.huggingface_families import BERT


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", MODELS)
def test_tensors_are_ported_bit_for_bit(kind, make_transformers_model):
    import torch

    model, folder = make_transformers_model(kind)
    ported = port(folder)
    state_dict = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert {native_name(name) for name in ported.tensors} == state_dict.keys()
    for name, tensor in ported.tensors.items():
        native = native_name(name)
        module, leaf = native.rsplit(".", 1)
        is_matrix = isinstance(model.get_submodule(module), torch.nn.Linear) and leaf == "weight"
        expected = state_dict[native].T if is_matrix else state_dict[native]
        assert tensor.dtype == expected.dtype == np.float32
        np.testing.assert_array_equal(tensor, expected, err_msg=name)
    assert ported.source_names == {name: native_name(name) for name in ported.tensors}


@pytest.mark.parametrize("kind", MODELS)
def test_a_ported_model_computes_what_transformers_computes(kind, make_transformers_model):
    import torch

    model, folder = make_transformers_model(kind)
    ported = port(folder)
    generator = np.random.default_rng(0)
    ids, segments = generator.integers(0, 31, (2, 7)), generator.integers(0, 2, (2, 7))
    valid = np.array([[True] * 7, [True] * 4 + [False] * 3])
    inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": valid}
    tasks = None
    if ported.config.tasks:
        tasks = generator.integers(0, 5, (2, 7))
        inputs["task_type_ids"] = tasks
    with torch.no_grad():
        expected = model.double()(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    reference = impls.build("numpy", ported, dtype="float64")
    # Values and weights are of order 1, sums have at most 17 terms, and there are two layers: some hundred units of
    # 2^-52, below 1e-13, and ten times that where a softmax is steep. The smallest mistake, a wrong epsilon, is 1e-6.
    tolerance = {"rtol": 0, "atol": 1e-12}
    output = reference.encode(ids, valid, segments, tasks)
    np.testing.assert_allclose(output[valid], expected.last_hidden_state.numpy()[valid], **tolerance)
    heads = reference.heads(ids, valid, segments, tasks)
    assert set(heads) == set(ported.config.heads_on_top)
    if "pooler" in heads:
        np.testing.assert_allclose(heads["pooler"], expected.pooler_output.numpy(), **tolerance)


@pytest.mark.parametrize("name", ["bert-base", "ernie-base", "minilm-tiny"])
def test_every_parameter_has_its_own_name(name):
    table = BERT.table(("pooler",)).names(recipe(name))
    assert table.keys() == schema.parameters(recipe(name)).keys()
    assert len(set(table.values())) == len(table)
    assert table == {name: native_name(name) for name in table}


def test_a_parameter_without_a_name_is_refused():
    with pytest.raises(PortingError, match=r"has no name for encoder\.layers\.0\.pre_attention\.norm\.scale"):
        BERT.table(("pooler",)).names(recipe("dygraph-tiny"))
    with pytest.raises(PortingError, match=r"has no name for encoder\.final\.norm\.scale; pass the configuration"):
        BERT.table(("pooler",)).names(replace(recipe("bert-base-tiny"), final_process="n"))


def test_a_square_weight_is_transposed(bert_folder):
    native = np.arange(144, dtype=np.float32).reshape(12, 12)
    names = [f"encoder.layer.0.attention.self.{name}.weight" for name in ("query", "key", "value")]
    change_tensors(bert_folder, lambda tensors: {**tensors, **dict.fromkeys([*names, "pooler.dense.weight"], native)})
    tensors = port(bert_folder).tensors
    for name in (*(f"encoder.layers.0.attention.{name}" for name in ("query", "key", "value")), "heads.pooler"):
        assert tensors[f"{name}.weight"][0, 1] == 12
        assert tensors[f"{name}.weight"][1, 0] == 1


def test_a_square_embedding_is_not_transposed(bert_folder):
    table = np.arange(144, dtype=np.float32).reshape(12, 12)
    change_config(bert_folder, vocab_size=12)
    change_tensors(bert_folder, lambda tensors: {**tensors, "embeddings.word_embeddings.weight": table})
    np.testing.assert_array_equal(port(bert_folder).tensors["embeddings.token.weight"], table)


@pytest.mark.parametrize("kind", ["bert", "ernie"])
def test_the_prefix_of_task_models_is_accepted(kind, make_transformers_model):
    _, folder = make_transformers_model(kind)
    plain = port(folder)
    change_tensors(folder, lambda tensors: {f"{kind}.{name}": tensor for name, tensor in tensors.items()})
    prefixed = port(folder)
    assert prefixed.config == plain.config
    assert_same_tensors(prefixed.tensors, plain.tensors)


def test_gamma_and_beta_are_accepted(bert_folder):
    plain = port(bert_folder)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            leaf = ".".join(name.split(".")[-2:])
            renamed[name.replace(leaf, old.get(leaf, leaf))] = tensor
        assert sum("gamma" in name for name in renamed) == sum("beta" in name for name in renamed) == 5
        return renamed

    change_tensors(bert_folder, rename)
    assert_same_tensors(port(bert_folder).tensors, plain.tensors)


@pytest.mark.parametrize("name", ["embeddings.position_ids", "bert.embeddings.position_ids"])
def test_position_ids_are_ignored(name, bert_folder):
    plain = port(bert_folder)
    change_tensors(bert_folder, lambda tensors: {**tensors, name: np.arange(9)[None]})
    assert_same_tensors(port(bert_folder).tensors, plain.tensors)


@pytest.mark.parametrize("as_text", [True, False])
def test_porting_to_a_target_writes_a_checkpoint(as_text, bert_folder, tmp_path):
    target = tmp_path / "model.npz"
    ported = port(*(str(path) if as_text else path for path in (bert_folder, target)))
    loaded = checkpoint.load(target, "full")
    assert loaded.config == ported.config
    assert loaded.source_names == ported.source_names
    assert_same_tensors(loaded.tensors, ported.tensors)


def test_a_checkpoint_is_not_changed(make_checkpoint, tmp_path):
    original = make_checkpoint("dygraph-tiny")
    assert port(original, tmp_path / "first.npz") is original
    again = port(tmp_path / "first.npz", tmp_path / "second.npz")
    assert again.digest == original.digest
    assert (tmp_path / "second.npz").read_bytes() == (tmp_path / "first.npz").read_bytes()


def test_the_source_is_not_changed(bert_folder, tmp_path):
    before = hashes(bert_folder)
    ported = port(bert_folder, tmp_path / "model.npz")
    for tensor in ported.tensors.values():
        tensor.fill(0)
    assert hashes(bert_folder) == before
    assert np.any(port(bert_folder).tensors["heads.pooler.weight"])
