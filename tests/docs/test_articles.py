"""Every framework computes what the text of two articles describes, on the same weights.

The models of article 000 (a toy translation) and article 003 ("Attention is all you need" step by step) are written
here in plain PyTorch. They also run in float64, where the noise is small enough to show a wrong epsilon.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from triglot import impls
from triglot.parity.budgets import budget
from triglot.parity.checks import Check
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.recipes import recipe

DTYPES = {"float32": torch.float32, "float64": torch.float64}
PAD = 2


class Layers:
    """Layers of torch.nn with the weights of a checkpoint, which stores linear weights as (in, out)."""

    def __init__(self, tensors, dtype):
        self.tensors = {name: torch.from_numpy(tensor.copy()).to(dtype) for name, tensor in tensors.items()}

    def linear(self, path):
        weight, bias = self.tensors[f"{path}.weight"], self.tensors[f"{path}.bias"]
        layer = nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype)
        layer.load_state_dict({"weight": weight.T, "bias": bias})
        return layer

    def embedding(self, path):
        return nn.Embedding.from_pretrained(self.tensors[f"{path}.weight"])

    def norm(self, path):
        scale, bias = self.tensors[f"{path}.scale"], self.tensors[f"{path}.bias"]
        layer = nn.LayerNorm(len(scale), eps=1e-5, dtype=scale.dtype)
        layer.load_state_dict({"weight": scale, "bias": bias})
        return layer

    def scalar_norm(self, path):
        alpha, bias = self.tensors[f"{path}.scale"], self.tensors[f"{path}.bias"]
        return lambda x: alpha * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + bias


def attend(layers, path, heads, query, key, value, hidden, fill):
    """Multi-head attention. ``hidden`` (B, 1 or T, S) is True where a query may not attend."""
    rows, _, width = query.shape

    def split(x):
        return x.view(rows, -1, heads, width // heads).transpose(1, 2)

    query = split(layers.linear(f"{path}.query")(query))
    key = split(layers.linear(f"{path}.key")(key))
    value = split(layers.linear(f"{path}.value")(value))
    score = query @ key.transpose(-2, -1) / (width // heads) ** 0.5
    weight = torch.softmax(score.masked_fill(hidden[:, None], fill), dim=-1)
    context = (weight @ value).transpose(1, 2).reshape(rows, -1, width)
    return layers.linear(f"{path}.output")(context)


def feed_forward(layers, path, x):
    return layers.linear(f"{path}.output")(torch.relu(layers.linear(f"{path}.inner")(x)))


def after(length):
    """Return (1, T, T), True where a key comes after its query."""
    return torch.ones(1, length, length, dtype=torch.bool).triu(1)


def article_000(layers, source, target, dtype):
    """Three layers each, a norm only before each sublayer, and padding recognised by its id."""
    places, dimensions = torch.arange(50.0, dtype=torch.float64), torch.arange(32.0, dtype=torch.float64)
    angle = places[:, None] / 10000 ** (dimensions / 32)
    table = torch.where(dimensions % 2 == 0, angle.sin(), angle.cos()).to(dtype)

    def embed(path, ids):
        return layers.embedding(f"{path}.token")(ids) + table[: ids.shape[1]]

    def attention_block(path, name, query, memory, hidden):
        norm = layers.norm(f"{path}.pre_{name}.norm")  # one norm for query, key and value
        key = value = norm(memory)
        attended = attend(layers, f"{path}.{name}", 4, norm(query), key, value, hidden, float("-inf"))
        return query + attended

    def feed_forward_block(path, x):
        return x + feed_forward(layers, f"{path}.feed_forward", layers.norm(f"{path}.pre_feed_forward.norm")(x))

    source_hidden = (source == PAD)[:, None]
    target_hidden = (target == PAD)[:, None] | after(target.shape[1])
    x, y = embed("embeddings", source), embed("target_embeddings", target)
    for i in range(3):
        x = attention_block(f"encoder.layers.{i}", "attention", x, x, source_hidden)
        x = feed_forward_block(f"encoder.layers.{i}", x)
    for i in range(3):
        y = attention_block(f"decoder.layers.{i}", "self_attention", y, y, target_hidden)
        y = attention_block(f"decoder.layers.{i}", "cross_attention", y, x, source_hidden)
        y = feed_forward_block(f"decoder.layers.{i}", y)
    return layers.linear("heads.logits")(y)


def article_003(layers, source, target, source_padding, target_padding, dtype):
    """Tiny sizes: 24 wide, 3 heads, two layers each. A norm before each sublayer and after each stack."""
    places, pairs = torch.arange(50.0, dtype=torch.float64), torch.arange(0, 24, 2, dtype=torch.float64)
    angle = places[:, None] * torch.exp(-(pairs / 24) * np.log(10000.0))
    table = torch.zeros(50, 24, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()

    def embed(path, ids):
        return layers.embedding(f"{path}.token")(ids) * 24**0.5 + table[: ids.shape[1]].to(dtype)

    def sublayer(path, name, x, function):
        return x + function(layers.scalar_norm(f"{path}.pre_{name}.norm")(x))

    def attention(path, hidden, memory=None):
        def run(x):
            read = x if memory is None else memory
            return attend(layers, path, 3, x, read, read, hidden, -1e9)

        return run

    source_hidden, target_hidden = source_padding[:, None], target_padding[:, None] | after(target.shape[1])
    x, y = embed("embeddings", source), embed("target_embeddings", target)
    for path in ("encoder.layers.0", "encoder.layers.1"):
        x = sublayer(path, "attention", x, attention(f"{path}.attention", source_hidden))
        x = sublayer(path, "feed_forward", x, lambda z, path=path: feed_forward(layers, f"{path}.feed_forward", z))
    memory = layers.scalar_norm("encoder.final.norm")(x)
    for path in ("decoder.layers.0", "decoder.layers.1"):
        y = sublayer(path, "self_attention", y, attention(f"{path}.self_attention", target_hidden))
        y = sublayer(path, "cross_attention", y, attention(f"{path}.cross_attention", source_hidden, memory))
        y = sublayer(path, "feed_forward", y, lambda z, path=path: feed_forward(layers, f"{path}.feed_forward", z))
    y = layers.scalar_norm("decoder.final.norm")(y)
    return torch.log_softmax(layers.linear("heads.log_probabilities")(y), dim=-1)


RECIPES = {"article 000": "translation", "article 003": "annotated-tiny"}
SOURCE_LENGTHS, TARGET_LENGTHS = (11, 1, 7, 4), (5, 14, 1, 9)


@pytest.fixture(scope="module", params=list(RECIPES))
def article(request):
    return request.param


@pytest.fixture
def checkpoint(article, make_checkpoint):
    """BERT's matrices times ten, so that attention is sharp and not a mean of everything."""
    made = make_checkpoint(replace(recipe(RECIPES[article]), initializer="bert"))
    tensors = {name: tensor * 10 if tensor.ndim == 2 else tensor for name, tensor in made.tensors.items()}
    return Checkpoint(made.config, tensors)


@pytest.fixture
def batch(checkpoint):
    """Rows with padding in source and target. Article 000 recognises padding by its id, which no real token has."""
    config, generator = checkpoint.config, np.random.default_rng(0)

    def rows(lengths, vocabulary):
        ids = generator.integers(PAD + 1, vocabulary, (len(lengths), max(lengths)))
        valid = np.arange(max(lengths)) < np.array(lengths)[:, None]
        return np.where(valid, ids, PAD), valid

    source, source_valid = rows(SOURCE_LENGTHS, config.source_vocabulary)
    target, target_valid = rows(TARGET_LENGTHS, config.target_vocabulary)
    assert source.shape != target.shape
    if config.pad_id == PAD:
        batch = inputs.pair_batch(config, source, target)
        np.testing.assert_array_equal(batch.valid, source_valid)
        np.testing.assert_array_equal(batch.target_valid, target_valid)
        return batch
    return inputs.pair_batch(config, source, target, source_valid, target_valid)


def run_article(article, checkpoint, batch, dtype):
    """Return what the article computes, with zeros at padding as in Triglot."""
    layers = Layers(checkpoint.tensors, DTYPES[dtype])
    source, target = torch.from_numpy(batch.source).long(), torch.from_numpy(batch.target).long()
    with torch.inference_mode():
        if article == "article 000":
            scores = article_000(layers, source, target, DTYPES[dtype])
        else:
            padding = torch.from_numpy(~batch.valid), torch.from_numpy(~batch.target_valid)
            scores = article_003(layers, source, target, *padding, DTYPES[dtype])
    assert scores.dtype == DTYPES[dtype]
    return np.where(batch.target_valid[:, :, None], scores.numpy(), 0)


def run_triglot(framework, checkpoint, batch, dtype):
    model = impls.build(framework, checkpoint, dtype=dtype)
    if checkpoint.config.pad_id == PAD:
        return model.forward(batch.source, batch.target)
    return model.forward(batch.source, batch.target, batch.valid, batch.target_valid)


def shares(values, checkpoint, batch, dtype):
    """Return the error of each value as a share of its budget."""
    check = Check("end_to_end", batch, "given")
    expectation = Reference(checkpoint, dtype).truth_of_check(check, {})
    name = f"heads.{checkpoint.config.heads_on_top[0]}"
    truth = expectation.values[name]
    limit = budget(expectation.noise[name], float(np.abs(truth).max()), dtype)
    return {name: distance(value, truth, None) / limit for name, value in values.items()}


def assert_within_noise(values, checkpoint, batch, dtype):
    for name, share in shares(values, checkpoint, batch, dtype).items():
        if not share <= 1:  # also true for NaN
            raise AssertionError(f"{name}: {share:.3g} times the budget")


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_computes_what_the_article_describes(framework, article, checkpoint, batch, dtype):
    values = {
        article: run_article(article, checkpoint, batch, dtype),
        framework: run_triglot(framework, checkpoint, batch, dtype),
    }
    assert {value.shape for value in values.values()} == {(*batch.target.shape, checkpoint.config.target_vocabulary)}
    assert_within_noise(values, checkpoint, batch, dtype)


FAULTS = {
    "article 000": (
        {"normalize_memory": False},
        {"positions": "sinusoidal"},
        {"norm_eps": 2e-5},
        {"activation": "gelu"},
        {"embedding_scale": True},
        {"attention_output_activation": "relu"},
    ),
    "article 003": (
        {"normalize_memory": True},
        {"positions": "sinusoidal_per_dimension"},
        {"norm_eps": 2e-6},
        {"embedding_scale": False},
        {"masking": "add", "masking_value": -1.0},
    ),
}


def test_the_comparison_notices_every_fault(article, checkpoint, batch):
    for changes in FAULTS[article]:
        faulty = Checkpoint(replace(checkpoint.config, **changes), checkpoint.tensors)
        values = {"faulty": run_triglot("numpy", faulty, batch, "float64")}
        assert shares(values, checkpoint, batch, "float64")["faulty"] > 1, changes


def test_the_comparison_notices_one_wrong_value(article, checkpoint, batch):
    value = run_article(article, checkpoint, batch, "float32")
    value[0, 0, 0] += 1e-3
    with pytest.raises(AssertionError, match="times the budget"):
        assert_within_noise({"shifted": value}, checkpoint, batch, "float32")
    value[0, 0, 0] = np.nan
    with pytest.raises(AssertionError, match="times the budget"):
        assert_within_noise({"NaN": value}, checkpoint, batch, "float32")


def test_the_comparison_notices_a_swapped_weight(article, checkpoint, batch):
    tensors = dict(checkpoint.tensors)
    first, second = (f"decoder.layers.{i}.cross_attention.key.weight" for i in (0, 1))
    tensors[first], tensors[second] = tensors[second], tensors[first]
    value = run_article(article, Checkpoint(recipe(RECIPES[article]), tensors), batch, "float32")
    with pytest.raises(AssertionError, match="times the budget"):
        assert_within_noise({"swapped": value}, checkpoint, batch, "float32")
