"""Folders of transformers are ported bit for bit and compute the same, or are refused with the reason."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from checkpoint_files import assert_same_tensors
from safetensors.numpy import load_file, save_file

from triglot import impls, port
from triglot.shared import checkpoint
from triglot.shared.errors import ModelNotFoundError, OutputError, PortingError
from triglot.shared.model import schema
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import huggingface_config
from triglot.shared.porting.dialects.huggingface_families import BERT

# Different sizes, among them odd ones.
SIZES = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 9,
}
# Class, fields of config.json, whether there is a pooler, Triglot's name of the activation.
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
    """Make a model of transformers with random weights, so that no norm is the identity, and its folder."""
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


@pytest.mark.parametrize("kind", MODELS)
def test_tensors_are_ported_bit_for_bit(kind, make_model):
    import torch

    model, folder = make_model(kind)
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
def test_the_configuration_is_translated(kind, make_model):
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
def test_the_prefix_of_task_models_is_accepted(kind, make_model):
    _, folder = make_model(kind)
    plain = port(folder)
    change_tensors(folder, lambda tensors: {f"{kind}.{name}": tensor for name, tensor in tensors.items()})
    prefixed = port(folder)
    assert prefixed.config == plain.config
    assert_same_tensors(prefixed.tensors, plain.tensors)


def test_the_prefix_of_another_model_is_refused(folder):
    change_tensors(folder, lambda tensors: {f"mpnet.{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(PortingError, match=r"is unknown: its tensors are mpnet\."):
        port(folder)


def test_gamma_and_beta_are_accepted(folder):
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


TYPES = "bert, ernie, roberta, xlm-roberta, camembert, distilbert, electra"
DIVISOR, RATE = "a divisor of hidden_size 12", "a rate from 0"
SIZE, NUMBER = "a whole number of at least 1", "a value of type"
ACTIVATIONS = "gelu, gelu_new, gelu_pytorch_tanh, relu, gelu_python"
WRONG_FIELDS = [
    *(("model_type", value, f"one of {TYPES}; Triglot does not") for value in ("t5", None, ["bert"])),
    *(
        ("hidden_act", value, "one of gelu, gelu_new, gelu_pytorch_tanh, relu, gelu_python")
        for value in ("silu", None, ["gelu"])
    ),
    ("position_embedding_type", "relative_key", "'absolute'; Triglot does not support"),
    *((name, True, "False; Triglot does not support") for name in ("is_decoder", "add_cross_attention")),
    ("num_attention_heads", 5, DIVISOR),
    *((name, 0, SIZE) for name in ("num_attention_heads", "vocab_size", "type_vocab_size", "num_hidden_layers")),
    ("hidden_size", -12, SIZE),
    *(("hidden_size", 12.0, "a whole number"), ("vocab_size", "31", "a whole number")),
    ("num_hidden_layers", None, "a whole number"),
    ("use_task_id", True, "true for an ERNIE with tasks, or false"),
    *(("use_task_id", 1, "true or false"), ("tie_word_embeddings", 0, "true or false")),
    *(("layer_norm_eps", "0", NUMBER), ("layer_norm_eps", 2, "a number between 0 and 1")),
    ("pad_token_id", 31, "null, or an id below vocab_size 31"),
    *(("hidden_dropout_prob", 1.5, RATE), ("attention_probs_dropout_prob", -0.5, RATE)),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG_FIELDS)
def test_a_wrong_or_unsupported_field_is_refused(name, value, expected, folder):
    change_config(folder, **{name: value})
    problem = f"config.json: {name} is {value!r}; expected {expected}"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {folder}: {problem}')}.*"):
        port(folder)


@pytest.mark.parametrize(
    "field",
    [
        *("hidden_act", "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"),
        *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "task_type_vocab_size"),
    ],
)
def test_a_missing_field_is_refused(field, make_model):
    _, folder = make_model("ernie")
    change_config(folder, **{field: ...})
    with pytest.raises(PortingError, match=rf"config\.json: {field} is missing; add the value"):
        port(folder)


def test_what_a_configuration_lacks_comes_from_the_names_and_from_the_user(make_model):
    """The files of the first BERT have neither a type nor an epsilon."""
    _, folder = make_model("ernie")
    expected = port(folder)
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    change_config(folder, **dict.fromkeys(("model_type", "layer_norm_eps", "hidden_act", *dropouts), ...))
    ported = port(folder, config={"norm_eps": expected.config.norm_eps, "activation": "gelu"})
    assert ported.config == replace(expected.config, residual_dropout=0, embedding_dropout=0, attention_dropout=0)
    change_config(folder, use_task_id=False)
    with pytest.raises(PortingError, match="task_type_embeddings"):
        port(folder, config={"norm_eps": 1e-12, "activation": "gelu"})


def test_a_folder_with_code_of_its_own_is_refused(folder):
    change_config(folder, auto_map={"AutoModel": "modeling_own.OwnModel"})
    with pytest.raises(PortingError, match=r"auto_map is .*; expected none; the folder's own code may compute"):
        port(folder)


def test_a_known_type_that_is_not_supported_is_refused_with_what_is_missing(folder):
    change_config(folder, model_type="mpnet")
    problem = r"model_type is 'mpnet'; expected one of .*; Triglot does not support a relative position bias"
    with pytest.raises(PortingError, match=rf"config\.json: {problem}"):
        port(folder)


def test_fields_that_older_files_lack_are_optional(folder):
    plain = port(folder)
    change_config(folder, position_embedding_type=..., is_decoder=..., add_cross_attention=...)
    assert port(folder).config == plain.config
    change_config(folder, position_embedding_type="absolute", is_decoder=False)
    assert port(folder).config == plain.config
    change_config(folder, position_embedding_type=None, is_decoder=None, tie_word_embeddings=None, use_task_id=None)
    assert port(folder).config == plain.config


def test_one_head_has_the_whole_hidden_size(folder):
    change_config(folder, num_attention_heads=1)
    config = port(folder).config
    assert (config.heads, config.key_size, config.value_size) == (1, 12, 12)


def test_an_ernie_without_use_task_id_has_no_tasks(make_model):
    _, folder = make_model("ernie without tasks")
    change_config(folder, use_task_id=...)
    assert port(folder).config.tasks == 0


def test_the_two_dropout_rates_are_not_confused(folder):
    change_config(folder, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.125)
    config = port(folder).config
    assert (config.embedding_dropout, config.residual_dropout) == (0.25, 0.25)
    assert (config.attention_dropout, config.feed_forward_dropout) == (0.125, 0.0)


def test_missing_and_unexpected_tensors_are_named_together(folder):
    def change(tensors):
        del tensors["encoder.layer.1.output.dense.bias"], tensors["embeddings.LayerNorm.weight"]
        return {**tensors, "cls.predictions.bias": np.zeros(31, np.float32), "bert.other": np.zeros(1, np.float32)}

    change_tensors(folder, change)
    problems = (
        f"cannot port {folder}: missing embeddings.LayerNorm.weight; missing encoder.layer.1.output.dense.bias; "
        "unexpected bert.other; unexpected cls.predictions.bias (add masked_lm to heads_on_top); expected exactly"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(problems)}"):
        port(folder)


def test_a_message_names_six_tensors_of_each_kind(folder):
    change_tensors(folder, lambda tensors: {f"other.{name}": tensor for name, tensor in tensors.items()})
    names = sorted(f"other.{native_name(name)}" for name in schema.parameters(replace(recipe("bert-base"), layers=2)))
    assert len(names) == 39
    with pytest.raises(PortingError, match=r"^cannot port .*: missing .*; unexpected .*") as error:
        port(folder, source_dialect="huggingface")
    problems = str(error.value).removeprefix(f"cannot port {folder}: ").split("; expected exactly")[0].split("; ")
    assert [problem.split()[0] for problem in problems] == ["missing"] * 6 + ["31"] + ["unexpected"] * 6 + ["33"]
    assert problems[:2] == [
        "missing embeddings.word_embeddings.weight",
        "missing embeddings.position_embeddings.weight",
    ]
    assert problems[6] == "31 more missing", "a pooler under another name does not count as a pooler"
    assert problems[7:] == [*(f"unexpected {name}" for name in names[:6]), "33 more unexpected"]


def test_an_incomplete_pooler_is_refused(folder):
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "pooler.dense.bias"})
    with pytest.raises(PortingError, match=r"missing pooler\.dense\.bias; expected"):
        port(folder)


def test_tensors_of_another_shape_are_refused(folder):
    change_config(folder, intermediate_size=18)
    with pytest.raises(PortingError, match=r"dense\.weight has shape \(17, 12\), expected \(18, 12\)"):
        port(folder)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_tensors_of_another_dtype_are_refused(dtype, folder):
    name = "encoder.layer.1.output.dense.bias"
    change_tensors(folder, lambda tensors: {**tensors, name: tensors[name].astype(dtype)})
    with pytest.raises(PortingError, match=rf"{re.escape(name)} has dtype {dtype}, expected one of float64, float32"):
        port(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"model_type: bert"])
def test_a_config_file_that_is_not_json_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    message = f"^cannot read {re.escape(str(folder / 'config.json'))}: .+; restore the file$"
    with pytest.raises(PortingError, match=message):
        port(folder)


@pytest.mark.parametrize("content", [b"[]", b"null", b'"bert"', b"3"])
def test_a_config_file_that_is_not_an_object_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(PortingError, match=r"^cannot read .*/config\.json: it is not a JSON object"):
        port(folder)


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-1], lambda content: content[::-1]])
def test_damaged_weights_are_refused(damage, folder):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PortingError, match=f"^cannot read {re.escape(str(path))}: .+; restore the file$"):
        port(folder)


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("config.json", r".*config\.json is missing; save the model with its configuration, or give the file"),
        ("model.safetensors", r".* holds no weights that Triglot recognises; expected model\.safetensors or pytorch_"),
    ],
)
def test_a_folder_without_both_files_is_refused(missing, problem, folder):
    (folder / missing).unlink()
    with pytest.raises(PortingError, match=problem):
        port(folder)


def test_a_path_to_nothing_is_refused(tmp_path):
    path = tmp_path / "nothing"
    with pytest.raises(ModelNotFoundError, match=f"^{re.escape(str(path))} does not exist; give"):
        port(path)


def test_another_file_is_refused(folder):
    with pytest.raises(PortingError, match=r"^cannot read .*: its format is unknown; expected"):
        port(folder / "config.json")


@pytest.mark.parametrize("as_text", [True, False])
def test_porting_to_a_target_writes_a_checkpoint(as_text, folder, tmp_path):
    target = tmp_path / "model.npz"
    ported = port(*(str(path) if as_text else path for path in (folder, target)))
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


def test_a_target_that_cannot_be_written_is_refused(folder, tmp_path):
    with pytest.raises(OutputError, match=r"^cannot write .*: the folder .* does not exist"):
        port(folder, tmp_path / "missing" / "model.npz")


def test_the_source_is_not_changed(folder, tmp_path):
    before = hashes(folder)
    ported = port(folder, tmp_path / "model.npz")
    for tensor in ported.tensors.values():
        tensor.fill(0)
    assert hashes(folder) == before
    assert np.any(port(folder).tensors["heads.pooler.weight"])


def test_bert_base_is_the_default_of_transformers():
    from transformers import BertConfig

    config = huggingface_config.from_json(BERT, BertConfig().to_dict(), ["pooler"])
    assert config == recipe("bert-base")
