"""BERTs with awkward sizes, built and saved by transformers, then ported and judged in every framework."""

from typing import Any

import numpy as np
import pytest
from noise import assert_within_noise, random_batch, truth_of

import triglot
from triglot import impls

# The configuration that the models change.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
# The class of transformers, and the fields of its configuration that differ from the defaults.
MODELS = {
    "3 heads": ("BertModel", {"hidden_size": 33, "num_attention_heads": 3}),
    "7 layers": ("BertModel", {"num_hidden_layers": 7}),
    "feed-forward 7": ("BertModel", {"intermediate_size": 7}),
    "32 heads of size 1": ("BertModel", {"hidden_size": 32, "num_attention_heads": 32}),
    "tanh GELU": ("BertModel", {"hidden_act": "gelu_new"}),
    "epsilon 1e-5": ("BertModel", {"layer_norm_eps": 1e-5}),
    "16 segments": ("BertModel", {"type_vocab_size": 16}),
    "maximum length 19": ("BertModel", {"max_position_embeddings": 19}),
    "masked LM and next sentence": ("BertForPreTraining", {}),
    "ERNIE, relu, untied": (
        "ErnieForPreTraining",
        {"hidden_act": "relu", "use_task_id": True, "task_type_vocab_size": 3, "tie_word_embeddings": False},
    ),
    "all at once": (
        "BertForPreTraining",
        {
            "hidden_size": 27,
            "num_attention_heads": 3,
            "num_hidden_layers": 7,
            "intermediate_size": 7,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-5,
            "type_vocab_size": 16,
            "max_position_embeddings": 19,
        },
    ),
}


def pytest_generate_tests(metafunc):
    if "model" in metafunc.fixturenames:
        steps = metafunc.function is test_every_step_passes_every_check
        few = steps and metafunc.config.getoption("--seeds") == 1
        metafunc.parametrize("model", ["all at once"] if few else list(MODELS), indirect=True, scope="module")


@pytest.fixture(scope="module")
def model(request, tmp_path_factory):
    """A model of transformers without a norm or bias that is the identity, and the checkpoint ported from its files."""
    import torch
    import transformers

    name, fields = MODELS[request.param]
    family = name.removesuffix("ForPreTraining").removesuffix("Model")
    config = getattr(transformers, f"{family}Config")(**DEFAULTS | fields, attn_implementation="eager")
    native = getattr(transformers, name)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in native.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    folder = tmp_path_factory.mktemp("model")
    native.save_pretrained(folder)
    return native, triglot.port(folder)


@pytest.fixture(scope="module")
def batch(model):
    config = model[1].config
    return random_batch(config, (config.source_max_length, 1, 11, 6))


@pytest.fixture(scope="module")
def truth(model, batch):
    return truth_of(model[1], batch)


def run_transformers(native, batch, config):
    """Return the output and the heads of a model of transformers by canonical name, zero at padding tokens."""
    import torch

    arrays = {"input_ids": batch.source, "attention_mask": batch.valid, "token_type_ids": batch.segment_ids}
    if config.tasks:
        arrays["task_type_ids"] = batch.task_ids
    tensors = {name: torch.from_numpy(array).long() for name, array in arrays.items()}
    with torch.inference_mode():
        result = native(**tensors, output_hidden_states=True)
    fields = {"pooler": "pooler_output", "masked_lm": "prediction_logits", "next_sentence": "seq_relationship_logits"}
    values = {f"heads.{head}": result[field].numpy() for head, field in fields.items() if field in result}
    values["output"] = result.hidden_states[-1].numpy()
    for name in {"output", "heads.masked_lm"} & values.keys():
        values[name] = np.where(batch.valid[:, :, None], values[name], 0)
    return values


def test_transformers_is_within_the_noise(model, batch, truth):
    native, ported = model
    values = run_transformers(native, batch, ported.config)
    assert values.keys() & {"heads.pooler", "heads.masked_lm"}
    assert_within_noise(values, truth)


def test_every_framework_is_within_the_noise(framework, model, batch, truth):
    _, ported = model
    built = impls.build(framework, ported)
    task_ids = batch.task_ids if ported.config.tasks else None
    arrays = (batch.source, batch.valid, batch.segment_ids, task_ids)
    values = {f"heads.{name}": value for name, value in built.heads(*arrays).items()}
    assert values.keys() == {f"heads.{head}" for head in ported.config.heads_on_top}
    assert_within_noise({"output": built.encode(*arrays), **values}, truth)


@pytest.mark.long(framework="jax")
def test_every_step_passes_every_check(framework, model, check_small):
    """``make audit`` tries all of the models."""
    _, ported = model
    report = check_small(ported, framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


def test_the_comparison_notices_another_epsilon(tmp_path):
    """The same weights with the epsilon of another library are beyond the noise."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**DEFAULTS)).save_pretrained(tmp_path)
    ported = triglot.port(tmp_path)
    wrong = triglot.port(tmp_path, config={"norm_eps": 1e-5})
    batch = random_batch(ported.config, [7, 5])
    output = impls.build("torch", wrong).encode(batch.source, batch.valid, batch.segment_ids)
    with pytest.raises(AssertionError, match=r"output: .* times the budget"):
        assert_within_noise({"output": output}, truth_of(ported, batch))
