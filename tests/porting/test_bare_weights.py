"""Bare weights, which need a configuration, and configurations that are corrected by a recipe or by fields."""

import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from triglot import port
from triglot.shared import checkpoint
from triglot.shared.errors import CheckpointError, ConfigError, PortingError
from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")
PRETRAINING = ("pooler", "masked_lm", "next_sentence")
# The fields that bare weights do not show, as in the tiny BERT.
NEEDED = {"model_type": "bert", "heads": 3, "activation": "gelu", "norm_eps": 1e-12, "masking": "exclude"}
# The fields that get their default.
DEFAULTS = {"pad_id": None, "embedding_dropout": 0.0, "residual_dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture
def make_bare(make_checkpoint, tmp_path):
    """Write the weights of a configuration as a bare .safetensors file. Return its path and the digest of the model."""

    def make(config=BERT, change=lambda tensors: tensors):
        original = make_checkpoint(config)
        port(original, tmp_path / "model", target_dialect="huggingface")
        path = tmp_path / "bare.safetensors"
        save_file(change(load_file(tmp_path / "model" / "model.safetensors")), path)
        return path, original.digest

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"heads_on_top": ()},
        {"heads_on_top": PRETRAINING},
        {"heads_on_top": PRETRAINING, "tied_embeddings": True},
        {"heads_on_top": ("masked_lm",), "tied_embeddings": True, "layers": 3, "feed_forward_size": 29},
        {"segments": 4, "tasks": 16, "source_vocabulary": 53, "source_max_length": 19},
    ],
)
def test_sizes_and_heads_come_from_the_tensors(changes, make_bare):
    config = replace(BERT, **changes)
    path, digest = make_bare(config)
    assert port(path, config=NEEDED).config == replace(config, **DEFAULTS)
    assert port(path, config={**NEEDED, **{name: config.to_dict()[name] for name in DEFAULTS}}).digest == digest
    assert port(path, config=config).digest == digest
    assert port(path, config=config.to_dict()).digest == digest
    assert port(path, config=config, source_dialect="huggingface").digest == digest


@pytest.mark.parametrize("prefix", ["", "bert.", "ernie."])
def test_a_recipe_gives_all_other_fields(prefix, make_bare):
    path, digest = make_bare(change=lambda tensors: {f"{prefix}{name}": array for name, array in tensors.items()})
    assert port(path, config="bert-base-tiny").digest == digest


@pytest.mark.parametrize("overrides", [None, {}, {"heads": 3}, {"layers": 2, "masking": "exclude", "norm_eps": 1e-12}])
def test_fields_that_the_weights_do_not_show_are_required(overrides, make_bare):
    path, _ = make_bare()
    missing = [
        name for name in ("model_type", "heads", "activation", "norm_eps", "masking") if name not in (overrides or {})
    ]
    problem = f"the tensors do not show {', '.join(missing)}; add --set {missing[0]}=.*, or --config with a recipe"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: ')}.*{problem}"):
        port(path, config=overrides)


@pytest.mark.parametrize("heads", [0, -3, 5, 25, True, "3", 3.0, None])
def test_an_impossible_number_of_heads_is_refused(heads, make_bare):
    path, _ = make_bare()
    with pytest.raises(PortingError, match=f"heads is {heads!r}; expected a divisor of 24, the size of all heads"):
        port(path, config={**NEEDED, "heads": heads})


def test_another_number_of_heads_fits_the_same_tensors(make_bare):
    """Nothing in the file shows how many heads share a matrix, so the user must know."""
    config = port(make_bare()[0], config={**NEEDED, "heads": 4}).config
    assert (config.heads, config.key_size, config.value_size) == (4, 6, 6)


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "encoder.layer.0.intermediate.dense.weight",
    ],
)
def test_a_missing_tensor_that_shows_a_size_is_refused(name, make_bare):
    path, _ = make_bare(change=lambda tensors: {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(
        PortingError, match=f"{re.escape(name)} is missing; expected the weights of the type bert or ernie"
    ):
        port(path, config=NEEDED)


@pytest.mark.parametrize("overrides", [NEEDED, "bert-base-tiny"], ids=["fields", "recipe"])
def test_any_other_missing_tensor_is_refused(overrides, make_bare):
    removed = "encoder.layer.1.output.dense.bias"
    path, _ = make_bare(change=lambda tensors: {k: v for k, v in tensors.items() if k != removed})
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: missing {removed}; expected exactly')}"):
        port(path, config=overrides)


def test_a_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"wte.weight": np.zeros((3, 4), np.float32)}, path)
    with pytest.raises(PortingError, match=r"is unknown: its tensors are wte\.weight; "):
        port(path, config=NEEDED)
    with pytest.raises(PortingError, match=r"embeddings\.word_embeddings\.weight is missing; expected the weights of"):
        port(path, source_dialect="huggingface", config=NEEDED)
    with pytest.raises(PortingError, match="1 tensors cannot be 2 layers; pass the configuration of this model"):
        port(path, source_dialect="huggingface", config="bert-base-tiny")


def test_a_layer_number_far_beyond_the_others_is_refused(make_bare):
    """Otherwise a short name could generate the names of a million layers."""
    extra = {"encoder.layer.999999.output.dense.bias": np.zeros(24, np.float32)}
    path, _ = make_bare(change=lambda tensors: {**tensors, **extra})
    with pytest.raises(PortingError, match="40 tensors cannot be 1000000 layers"):
        port(path, config=NEEDED)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({**NEEDED, "activation": "silu"}, "activation is 'silu'.*expected one of relu, gelu, gelu_tanh"),
        ({**NEEDED, "masking": "add"}, "masking_value is None.*expected a finite negative number"),
        ({**NEEDED, "layer": 2}, "unknown field.*layer.*kind, hidden_size,"),
    ],
)
def test_a_wrong_field_is_refused(overrides, problem, make_bare):
    path, _ = make_bare()
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: ')}.*{problem}"):
        port(path, config=overrides)


def test_an_unknown_recipe_is_refused(make_bare):
    path, _ = make_bare()
    with pytest.raises(PortingError, match=r"recipe.*'bert'.*bert-base"):
        port(path, config="bert")


def test_the_tensors_of_an_omitted_head_are_named(make_bare):
    path, _ = make_bare(replace(BERT, heads_on_top=PRETRAINING, tied_embeddings=True))
    with pytest.raises(PortingError, match="unexpected") as error:
        port(path, config=replace(BERT, heads_on_top=("masked_lm",), tied_embeddings=True))
    problems = re.findall(r"unexpected (\S+) \(add (\w+) to heads_on_top\)", str(error.value))
    assert sorted(problems) == [
        ("bert.pooler.dense.bias", "pooler"),
        ("bert.pooler.dense.weight", "pooler"),
        ("cls.seq_relationship.bias", "next_sentence"),
        ("cls.seq_relationship.weight", "next_sentence"),
    ]


def test_a_table_that_is_stored_twice_is_tied_unless_it_is_declared_untied(make_bare):
    """transformers 4 stores it twice. Both models compute the same results, but do not learn in the same way."""
    tied = replace(BERT, heads_on_top=PRETRAINING, tied_embeddings=True)

    def write_twice(tensors):
        table = tensors["bert.embeddings.word_embeddings.weight"]
        return {**tensors, "cls.predictions.decoder.weight": table}

    path, digest = make_bare(tied, write_twice)
    assert port(path, config=NEEDED).config == replace(tied, **DEFAULTS)
    assert port(path, config=tied).digest == digest
    assert not port(path, config={**NEEDED, "tied_embeddings": False}).config.tied_embeddings


def test_config_corrects_the_fields_of_a_folder(make_bare):
    path, _ = make_bare()
    folder = path.parent / "model"
    assert port(folder, config={"norm_eps": 1e-5}).config == replace(BERT, norm_eps=1e-5)
    assert port(folder, config=replace(BERT, activation="relu")).config == replace(BERT, activation="relu")
    with pytest.raises(PortingError, match=r"missing encoder\.layer\.2\.attention\.self\.query\.weight"):
        port(folder, config={"layers": 3})


def test_config_corrects_the_fields_of_a_checkpoint(make_checkpoint, tmp_path):
    original, path = make_checkpoint(BERT), tmp_path / "model.npz"
    checkpoint.save(original, path)
    corrected = port(path, tmp_path / "corrected.npz", config={"norm_eps": 1e-5, "pad_id": None})
    expected = replace(BERT, norm_eps=1e-5, pad_id=None)
    loaded = checkpoint.load(tmp_path / "corrected.npz", "full")
    assert corrected.config == loaded.config == expected
    assert corrected.digest == loaded.digest == checkpoint.Checkpoint(expected, original.tensors).digest
    assert port(path, config={}).digest == original.digest
    assert port(original, config={"norm_eps": 1e-5}).config == replace(BERT, norm_eps=1e-5)
    with pytest.raises(CheckpointError, match=r"unexpected heads\.pooler\."):
        port(path, config={"heads_on_top": []})
    with pytest.raises(ConfigError, match="layers is 0; expected a size of at least 1"):
        port(path, config={"layers": 0})


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_prefix_of_a_wrapper_is_left_out(wrapper, make_bare):
    path, digest = make_bare(BERT, lambda tensors: {wrapper + name: tensor for name, tensor in tensors.items()})
    ported = port(path, config=BERT)
    assert ported.digest == digest
    assert ported.left_out[f"the prefix {wrapper}"] == "a wrapper of the module put it before every name"


def test_a_part_of_a_larger_model_is_unknown_and_the_error_names_its_prefix(make_bare):
    path, _ = make_bare(BERT, lambda tensors: {f"text_model.{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(PortingError, match=r"is unknown: .*; remove text_model\. from the names if it is only"):
        port(path, config=BERT)
