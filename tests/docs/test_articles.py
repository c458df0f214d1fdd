"""From the weights of an article's own code, every framework computes what that code computes, within the budget.

The code is in ``helpers/article_code.py``, repaired where an article is defective; it does not use Triglot. ``make
articles`` also runs it at the sizes of the recipes: for article 003, 512 wide, 6 + 6 layers, vocabularies of 10,000.
"""

from dataclasses import replace

import article_code
import numpy as np
import pytest
import torch

from triglot import impls, port
from triglot.parity.budgets import budget
from triglot.parity.truth import Reference
from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe
from triglot.shared.model.schema import ATTENDED, AVERAGED, OUTPUT

CODE = {
    "translation": "Translation",
    "dygraph": "Dygraph",
    "prenorm": "Prenorm",
    "annotated": "Annotated",
    "multihead": "Multihead",
}
# Position tables, which the articles compute in float32. Here they are replaced by float64 tables, as the recipes use.
TABLE_BUFFERS = {
    "translation": {"embed_x.pe": "source", "embed_y.pe": "target"},
    "prenorm": {"transformer.wpe.pe": "source"},
    "annotated": {"src_pos.pe": "source", "tgt_pos.pe": "target"},
}


@pytest.fixture(scope="module", params=CODE)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def article(name, size, tmp_path_factory):
    """The article's model in float64, with weights that it draws itself, and its state dict as a checkpoint."""
    config = recipe(name if size == "paper" else f"{name}-tiny")
    if name == "translation":
        config = replace(config, layers=3, decoder_layers=3)  # fixed in its code
    torch.manual_seed(0)
    model = getattr(article_code, CODE[name])(config)
    if name == "multihead":
        for weight in (model.q_proj_weight, model.k_proj_weight, model.v_proj_weight):  # uninitialised in the article
            torch.nn.init.xavier_uniform_(weight)
    tensors = dict(model.state_dict())
    if name == "dygraph":  # the caller passes the initializer; this is ERNIE's
        for key, tensor in tensors.items():
            torch.nn.init.trunc_normal_(tensor, 1.0 if key.endswith("scale") else 0.0, 0.02)
    path = tmp_path_factory.mktemp("article") / "run.pt"
    torch.save(tensors, path)
    checkpoint = port(path, source_dialect=f"article-{name}", config=config)
    if not isinstance(model, torch.nn.Module):
        return model.double(), checkpoint
    model = model.double()
    for buffer, side in TABLE_BUFFERS.get(name, {}).items():
        table = TABLES[config.positions](getattr(config, f"{side}_max_length"), config.hidden_size)
        model.load_state_dict({buffer: torch.from_numpy(np.array(table))[None]}, strict=False)
    return model, checkpoint


@pytest.fixture(scope="module")
def task(name, article):
    """A batch, the results of the article's code by the name of the value, and the noise of each value by dtype."""
    model, checkpoint = article
    batch, expected = example(name, model, checkpoint.config, article_code.PAD)
    noise = {dtype: Reference(checkpoint, dtype).truth_of_values(batch, {}).noise for dtype in ("float32", "float64")}
    return batch, expected, noise


def example(name, model, config, pad):
    """A batch of three lengths with padding, so that masks matter, and the article's results for it."""
    generator = np.random.default_rng(0)
    valid = np.arange(11) < np.array([[11], [4], [7]])
    target_valid = np.arange(9) < np.array([[5], [9], [6]])
    if name == "dygraph":
        vectors = generator.normal(size=(3, 11, config.hidden_size)).astype(np.float32)
        with torch.no_grad():
            output = model(torch.from_numpy(vectors).double(), torch.from_numpy(valid)).numpy()
        return inputs.encoder_batch(config, vectors, valid), {OUTPUT: np.where(valid[:, :, None], output, 0)}
    if name == "multihead":
        vectors = [generator.normal(size=(length, 3, config.hidden_size)).astype(np.float32) for length in (9, 11, 11)]
        tensors = (torch.from_numpy(part).double() for part in vectors)
        with torch.no_grad():
            output = model(*tensors, torch.from_numpy(~valid)).numpy().swapaxes(0, 1)
        return inputs.attention_batch(config, *vectors, key_valid=valid, batch_first=False), {ATTENDED: output}
    source = np.where(valid, generator.integers(pad + 1, config.source_vocabulary, valid.shape), pad)
    target = np.where(target_valid, generator.integers(pad + 1, config.target_vocabulary, target_valid.shape), pad)
    masks = () if name == "translation" else (torch.from_numpy(valid), torch.from_numpy(target_valid))
    with torch.no_grad():
        output = model(torch.from_numpy(source), torch.from_numpy(target), *masks).numpy()
    key = f"heads.{config.heads_on_top[0]}"
    return inputs.pair_batch(config, source, target, valid, target_valid), {
        key: np.where(target_valid[:, :, None], output, 0)
    }


def assert_within_budget(values, expected, noise, dtype):
    for name, value in expected.items():
        error = np.abs(values[name] - value).max()
        limit = budget(noise[dtype][name].max(), np.abs(value).max(), dtype)
        if not error <= limit:  # also true for NaN
            raise AssertionError(f"{name}: {error / limit:.3g} times the budget")


@pytest.mark.long(framework="jax", dtype="float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_framework_computes_what_the_article_computes(framework, article, task, dtype):
    _, checkpoint = article
    batch, expected, noise = task
    assert_within_budget(impls.build(framework, checkpoint, dtype=dtype).trace(batch), expected, noise, dtype)


def test_the_reference_computes_what_the_article_computes(article, task):
    _, checkpoint = article
    batch, expected, noise = task
    assert_within_budget(Reference(checkpoint).trace(batch, {}), expected, noise, "float64")


# Configurations that differ from the article's in one property.
FAULTS = {
    "translation": (
        {"normalize_memory": False},
        {"positions": "sinusoidal"},
        {"norm_eps": 2e-5},
        {"activation": "gelu"},
        {"embedding_scale": True},
        {"attention_output_activation": "relu"},
    ),
    "dygraph": ({"norm_eps": 2e-5}, {"activation": "gelu_tanh"}),
    "prenorm": ({"norm_eps": 2e-5}, {"normalize_memory": True}, {"attention_output_activation": "none"}),
    "annotated": (
        {"normalize_memory": True},
        {"positions": "sinusoidal_per_dimension"},
        {"norm_eps": 2e-6},
        {"embedding_scale": False},
        {"masking": "add", "masking_value": -1.0},
    ),
    "multihead": ({"masking": "add", "masking_value": -1.0},),
}


def test_the_comparison_notices_every_fault(name, article, task):
    _, checkpoint = article
    batch, expected, noise = task
    for changes in FAULTS[name]:
        faulty = Reference(Checkpoint(replace(checkpoint.config, **changes), checkpoint.tensors))
        with pytest.raises(AssertionError, match="times the budget"):
            assert_within_budget(faulty.trace(batch, {}), expected, noise, "float64")


@pytest.mark.parametrize("value", [1e-3, np.nan])
def test_the_comparison_notices_one_wrong_element(task, value):
    _, expected, noise = task
    values = {name: array.copy() for name, array in expected.items()}
    for array in values.values():
        array[0, 0, 0] += value
    with pytest.raises(AssertionError, match="times the budget"):
        assert_within_budget(values, expected, noise, "float32")


def test_the_comparison_notices_swapped_weights(article, task):
    _, checkpoint = article
    batch, expected, noise = task
    tensors = dict(checkpoint.tensors)
    first, second = [name for name in tensors if name.endswith(("attention.query.weight", "attention.key.weight"))][:2]
    tensors[first], tensors[second] = tensors[second], tensors[first]
    swapped = Reference(Checkpoint(checkpoint.config, tensors)).trace(batch, {})
    with pytest.raises(AssertionError, match="times the budget"):
        assert_within_budget(swapped, expected, noise, "float32")


def test_attention_equals_torch_multihead_attention(framework, size):
    """Both masks at once; output and averaged weights."""
    config = recipe("multihead" if size == "paper" else "multihead-tiny")
    torch.manual_seed(1)
    torch_attention = torch.nn.MultiheadAttention(config.hidden_size, config.heads, bias=False, batch_first=True)
    torch_attention.out_proj.bias = torch.nn.Parameter(torch.randn(config.hidden_size))
    projections = torch_attention.in_proj_weight.detach().chunk(3)
    tensors = {
        f"attention.{part}.weight": weight.T.contiguous().numpy()
        for part, weight in zip(("query", "key", "value"), projections, strict=True)
    }
    tensors["attention.output.weight"] = torch_attention.out_proj.weight.detach().T.contiguous().numpy()
    tensors["attention.output.bias"] = torch_attention.out_proj.bias.detach().numpy()
    checkpoint = Checkpoint(config, tensors)
    generator = np.random.default_rng(2)
    query, key = (generator.normal(size=(3, n, config.hidden_size)).astype(np.float32) for n in (9, 11))
    key_valid = np.arange(11) < np.array([[11], [4], [7]])
    bias = np.where(np.tri(9, 11, 2), generator.normal(size=(9, 11)), -np.inf)
    with torch.no_grad():
        output, averaged = torch_attention.double()(
            *(torch.from_numpy(part).double() for part in (query, key, key)),
            key_padding_mask=torch.from_numpy(np.where(key_valid, 0, -np.inf)),
            attn_mask=torch.from_numpy(bias),
        )
    batch = inputs.attention_batch(config, query, key, key, key_valid=key_valid, bias=bias)
    noise = Reference(checkpoint).truth_of_values(batch, {}).noise
    results = impls.build(framework, checkpoint).attend(query, key, key, key_valid=key_valid, bias=bias)
    for name, result, expected in zip((ATTENDED, AVERAGED), results, (output.numpy(), averaged.numpy()), strict=True):
        assert np.abs(result - expected).max() <= budget(noise[name].max(), np.abs(expected).max(), "float32"), name
