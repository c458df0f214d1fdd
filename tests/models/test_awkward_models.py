"""Awkward BERTs that nobody here made: made and saved by transformers, ported, judged in every framework."""

from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.parity.budgets import budget
from triglot.parity.checks import Check
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs

PRE_TRAINING = ("pooler", "masked_lm", "next_sentence")
# A name, the class of transformers, and what its configuration has unlike this one. Norms and biases are never the
# identity: see ``make``.
USUAL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
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
    """A model of transformers, and the same ported from the files that it saved."""
    import torch
    import transformers

    name, fields = MODELS[request.param]
    family = name[: -len("ForPreTraining")] if name.endswith("ForPreTraining") else name[: -len("Model")]
    config = getattr(transformers, f"{family}Config")(**USUAL | fields, attn_implementation="eager")
    theirs = getattr(transformers, name)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return theirs, triglot.port(folder)


@pytest.fixture(scope="module")
def batch(model):
    config = model[1].config
    lengths = (config.source_max_length, 1, 11, 6)
    return inputs.random_batch(config, lengths, np.random.default_rng(0))


@pytest.fixture(scope="module")
def expectation(model, batch):
    _, ported = model
    return Reference(ported, "float32").truth_of_check(Check("end_to_end", batch, "given"), {})


def run_theirs(model, batch, config):
    """What transformers computes, under our names; zero at padding, as we have it."""
    import torch

    given = {"input_ids": batch.source, "attention_mask": batch.valid, "token_type_ids": batch.segment_ids}
    if config.tasks:
        given["task_type_ids"] = batch.task_ids
    with torch.inference_mode():
        found = model(
            **{name: torch.from_numpy(array).long() for name, array in given.items()}, output_hidden_states=True
        )
    values = {"output": found.hidden_states[-1]}
    names = {"pooler": "pooler_output", "masked_lm": "prediction_logits", "next_sentence": "seq_relationship_logits"}
    values |= {f"heads.{head}": found[name] for head, name in names.items() if name in found}
    arrays = {name: value.numpy() for name, value in values.items()}
    for name in {"output", "heads.masked_lm"} & arrays.keys():
        arrays[name] = np.where(batch.valid[:, :, None], arrays[name], 0)
    return arrays


def excess(values, expectation):
    """Of each value, its error in multiples of what a correct implementation may be off by."""
    shares = {}
    for name, value in values.items():
        truth = expectation.values[name]
        shares[name] = distance(value, truth, None) / budget(expectation.noise[name], np.abs(truth).max(), "float32")
    return {name: share for name, share in shares.items() if not share <= 1}  # NaN exceeds too


def test_transformers_itself_is_within_the_noise(model, batch, expectation):
    theirs, ported = model
    values = run_theirs(theirs, batch, ported.config)
    assert "output" in values
    assert {"heads.pooler", "heads.masked_lm"} & values.keys()
    assert not excess(values, expectation)


def test_every_framework_is_within_the_noise(framework, model, batch, expectation):
    _, ported = model
    built = impls.build(framework, ported)
    given = (
        batch.source,
        batch.valid,
        batch.segment_ids,
        batch.task_ids if ported.config.tasks else None,
    )
    values = {"output": built.encode(*given)}
    values |= {f"heads.{name}": value for name, value in built.heads(*given).items()}
    assert values.keys() == {"output"} | {f"heads.{head}" for head in ported.config.heads_on_top}
    assert not excess(values, expectation)


def test_every_step_passes_every_check(framework, model, check_small):
    """``make audit`` tries all of the models."""
    _, ported = model
    report = check_small(ported, framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


def test_the_comparison_notices_another_epsilon(tmp_path):
    """The guard itself: the same weights with the epsilon of another library are beyond the noise."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**USUAL)).save_pretrained(tmp_path)
    ported = triglot.port(tmp_path, config={"norm_eps": 1e-5})
    right = triglot.port(tmp_path)
    batch = inputs.random_batch(right.config, [7, 5], np.random.default_rng(0))
    expectation = Reference(right, "float32").truth_of_check(Check("end_to_end", batch, "given"), {})
    output = impls.build("torch", ported).encode(batch.source, batch.valid, batch.segment_ids)
    assert "output" in excess({"output": output}, expectation)
