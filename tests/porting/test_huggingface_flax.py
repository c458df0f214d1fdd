"""Models that transformers 4 stored for Flax: read and written as Flax does it, and they compute the same."""

import json
import shutil
from typing import Any

import flax_models as models
import numpy as np
import pytest
from flax import serialization
from noise import assert_within_noise, random_batch, truth_of

from triglot import port
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.porting import recognise

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
}
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1}
UNTIED = {"tie_word_embeddings": False}
# A class of transformers, and the fields of its configuration that differ from SIZES.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("BertModel", {}),
    "BERT, pre-training": ("BertForPreTraining", {}),
    "BERT, untied": ("BertForPreTraining", UNTIED),
    "BERT, sequences": ("BertForSequenceClassification", {"num_labels": 5}),
    "BERT, tokens": ("BertForTokenClassification", {"num_labels": 3}),
    "RoBERTa, masked LM": ("RobertaForMaskedLM", ROBERTA),
    "RoBERTa, untied": ("RobertaForMaskedLM", ROBERTA | UNTIED),
    "RoBERTa, sequences": ("RobertaForSequenceClassification", ROBERTA),
    "XLM-R": ("XLMRobertaModel", ROBERTA),
    "DistilBERT, masked LM": ("DistilBertForMaskedLM", DISTILBERT),
    "DistilBERT, untied": ("DistilBertForMaskedLM", DISTILBERT | UNTIED),
    "DistilBERT, sequences": ("DistilBertForSequenceClassification", DISTILBERT),
    "ELECTRA, generator": ("ElectraForMaskedLM", {"embedding_size": 16}),
    "ELECTRA, discriminator": ("ElectraForPreTraining", {"embedding_size": 32}),
    "ELECTRA, sequences": ("ElectraForSequenceClassification", {"embedding_size": 16}),
}


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    """The kind of a model, the folder that PyTorch saved, the folder for Flax, and its parameters."""
    import torch
    import transformers

    name, fields = MODELS[request.param]
    start = name.split("For")[0].removesuffix("Model")
    sizes = {key: SIZES[key] for key in ("vocab_size", "max_position_embeddings")} if start == "DistilBert" else SIZES
    native = getattr(transformers, name)(getattr(transformers, f"{start}Config")(**sizes | fields)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in native.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    folder = tmp_path_factory.mktemp("models")
    native.save_pretrained(folder / "torch")
    (folder / "flax").mkdir()
    shutil.copy(folder / "torch" / "config.json", folder / "flax")
    parameters = models.parameters_of(native)
    (folder / "flax" / "flax_model.msgpack").write_bytes(serialization.to_bytes(parameters))
    return request.param, folder / "torch", folder / "flax", parameters


def assert_equal_trees(found, expected):
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        if isinstance(part, dict):
            assert_equal_trees(found[name], part)
        else:
            np.testing.assert_array_equal(found[name], part, err_msg=name, strict=True)


def test_the_same_weights_are_the_same_checkpoint(saved):
    _, torch_folder, flax_folder, _ = saved
    assert port(flax_folder).digest == port(torch_folder).digest


def test_flax_restores_what_is_written(saved, tmp_path):
    _, _, flax_folder, parameters = saved
    checkpoint = port(flax_folder)
    port(checkpoint, tmp_path / "out", target_dialect="huggingface-flax")
    content = (tmp_path / "out" / "flax_model.msgpack").read_bytes()
    assert_equal_trees(serialization.msgpack_restore(content), parameters)
    assert_equal_trees(serialization.from_bytes(parameters, content), parameters)
    assert port(tmp_path / "out").digest == checkpoint.digest


@pytest.mark.long(saved="BERT, pre-training")
@pytest.mark.parametrize("saved", ["BERT, pre-training", "BERT, untied"], indirect=True)
def test_flax_computes_the_same(saved):
    _, _, folder, parameters = saved
    checkpoint = port(folder)
    batch = random_batch(checkpoint.config, (11, 6, 9))

    def assert_matches(checkpoint):
        values = models.outputs(parameters, batch, checkpoint.config.heads, checkpoint.config.norm_eps)
        for name, value in values.items():
            if value.shape[:2] == batch.valid.shape:
                values[name] = np.where(batch.valid[..., None], value, 0)
        assert_within_noise(values, truth_of(checkpoint, batch))

    assert_matches(checkpoint)
    # A square matrix fits without its transpose, but this comparison notices it.
    for name in ("encoder.layers.1.attention.query.weight", "heads.masked_lm.transform.weight"):
        turned = Checkpoint(checkpoint.config, {**checkpoint.tensors, name: checkpoint.tensors[name].T})
        with pytest.raises(AssertionError, match="times the budget"):
            assert_matches(turned)


@pytest.mark.parametrize("saved", ["BERT, pre-training", "RoBERTa, masked LM"], indirect=True)
def test_a_bare_file_asks_for_what_no_tensor_shows(saved):
    kind, _, folder, _ = saved
    path = folder / "flax_model.msgpack"
    answers = {"pad_id": 1} if "RoBERTa" in kind else {"masking": "exclude"}
    bare = port(path, config={"heads": 4, "activation": "gelu", "norm_eps": 1e-12, **answers})
    expected = port(folder)
    assert all(np.array_equal(bare.tensors[name], tensor) for name, tensor in expected.tensors.items())
    with pytest.raises(PortingError, match="do not show heads, activation, norm_eps"):
        port(path)


@pytest.mark.parametrize("saved", ["BERT, pre-training"], indirect=True)
def test_names_and_words_are_compared_strictly(saved, tmp_path):
    """A kernel where a scale belongs, a misspelt name, and heads that are not known."""
    _, _, folder, parameters = saved
    path = shutil.copytree(folder, tmp_path / "model") / "flax_model.msgpack"
    body, norm = parameters["bert"], parameters["bert"]["embeddings"]["LayerNorm"]
    for changed, problem in (
        ({"LayerNorm": {"kernel": norm["scale"], "bias": norm["bias"]}}, r"missing .*scale; unexpected .*kernel"),
        ({"layer_norm": norm}, r"unexpected bert\.embeddings\.layer_norm"),
    ):
        tree = {**parameters, "bert": {**body, "embeddings": {**body["embeddings"], **changed}}}
        path.write_bytes(serialization.to_bytes(tree))
        with pytest.raises(PortingError, match=problem):
            port(path.parent)
    path.write_bytes(serialization.to_bytes({**parameters, "qa_outputs": {"kernel": norm["scale"]}}))
    with pytest.raises(PortingError, match=r"unexpected qa_outputs\.kernel"):
        port(path.parent)
    kept = port(path.parent, heads=["pooler"])
    assert "qa_outputs.kernel" in kept.left_out


@pytest.mark.parametrize("saved", ["BERT"], indirect=True)
def test_a_folder_with_both_files_is_read_as_asked(saved, tmp_path):
    _, torch_folder, flax_folder, _ = saved
    both = shutil.copytree(torch_folder, tmp_path / "both")
    shutil.copy(flax_folder / "flax_model.msgpack", both)
    assert recognise(both, None).dialect.name == "huggingface"
    assert port(both, source_dialect="huggingface-flax").source_names["embeddings.token.weight"].endswith("embedding")
    assert recognise(flax_folder, None).dialect.name == "huggingface-flax"


def test_ernie_cannot_be_written(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint("ernie-base-tiny")
    config = {"masking": "exclude", "masking_value": None}
    with pytest.raises(PortingError, match="the dialect huggingface-flax cannot express tasks"):
        port(port(checkpoint, config=config), tmp_path / "out", target_dialect="huggingface-flax")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("saved", ["BERT"], indirect=True)
def test_an_ernie_in_the_configuration_is_refused(saved, tmp_path):
    folder = shutil.copytree(saved[2], tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "ernie"}))
    with pytest.raises(PortingError, match="model_type is 'ernie'; expected one of bert, roberta"):
        port(folder)
