"""Dropout masks: at every site, of the shape of the value, and with the effect of PyTorch's dropout."""

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import triglot
from triglot import impls
from triglot.shared import inputs
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe
from triglot.shared.model.recipes import recipe, recipes
from triglot.shared.model.schema import dropouts
from triglot.shared.training.dropout_masks import draw_dropout_masks

TINY = [name for name in recipes() if name.endswith("-tiny")]
DECODERS = [name for name in TINY if recipe(name).kind == "encoder_decoder"]
RATES = [field.name for field in fields(ModelConfig) if field.name.endswith("_dropout")]
EVERYWHERE = dict.fromkeys(RATES, 0.25)


class RecordingMasks(dict):
    """Masks that record the names they are asked for."""

    def __init__(self, masks):
        super().__init__(masks)
        self.names = []

    def get(self, name, default=None):
        self.names.append(name)
        return super().get(name, default)


def batch_of(config) -> Any:
    return inputs.random_batch(config, [6, 3, 1], np.random.default_rng(0))


def training_batch(config) -> Any:
    batch: Any = batch_of(config)
    labels = np.random.default_rng(1).integers(0, config.target_vocabulary, batch.target.shape)
    return inputs.labelled(config, batch, labels)


@pytest.mark.parametrize("name", TINY)
def test_sites_are_those_that_the_code_asks_for_in_order(implementation, name, make_checkpoint):
    config = replace(recipe(name), **EVERYWHERE)
    model: Any = impls.build(implementation, make_checkpoint(config))
    masks = RecordingMasks({"no such site": None})  # not empty, because an empty mapping is replaced
    model.run(batch_of(config), Probe(dropout_masks=masks))
    assert masks.names == list(dropouts(config))
    assert masks.names or config.kind == "encoder"


def test_rate_of_zero_drops_nothing():
    config = replace(recipe("translation-tiny"), **dict.fromkeys(RATES, 0.0))
    assert dropouts(config) == {}
    assert draw_dropout_masks(config, batch_of(config), np.random.default_rng(0)) == {}


@pytest.mark.parametrize("rate", RATES)
def test_each_rate_has_its_own_sites(rate):
    config = replace(recipe("prenorm-tiny"), **dict.fromkeys(RATES, 0.0))
    sites = dropouts(replace(config, **{rate: 0.5}))
    place = {
        "embedding_dropout": "embeddings.process.dropout.1",
        "residual_dropout": "decoder.layers.1.post_cross_attention.dropout.0",
        "attention_dropout": "decoder.layers.1.cross_attention.dropout",
        "attention_output_dropout": "decoder.layers.1.cross_attention.output_dropout",
        "feed_forward_dropout": "decoder.layers.1.feed_forward.dropout",
        "feed_forward_output_dropout": "encoder.layers.0.feed_forward.output_dropout",
    }[rate]
    assert place in sites
    assert {dropout.rate for dropout in sites.values()} == {0.5}
    others = [dropouts(replace(config, **{other: 0.5})).keys() for other in RATES if other != rate]
    assert not sites.keys() & set().union(*others)


@pytest.mark.parametrize("name", TINY)
def test_masks_have_the_shape_of_their_values(name, make_checkpoint):
    """NumPy would silently broadcast a mask of size 1, so the shapes are compared."""

    class Shape:
        def __init__(self, mask, name):
            self.mask, self.name = mask, name

        def __rmul__(self, value):
            assert value.shape == self.mask.shape, self.name
            return value * self.mask

        __array_ufunc__ = None  # so that NumPy calls __rmul__

    config = replace(recipe(name), **EVERYWHERE)
    batch: Any = batch_of(config)
    masks = draw_dropout_masks(config, batch, np.random.default_rng(2))
    assert masks.keys() == dropouts(config).keys()
    probe = Probe(dropout_masks={site: Shape(mask, site) for site, mask in masks.items()})
    impls.build("numpy", make_checkpoint(config)).run(batch, probe)
    first = next(iter(masks))
    probe = Probe(dropout_masks={first: Shape(masks[first][..., :1], first)})
    with pytest.raises(AssertionError, match=first):
        impls.build("numpy", make_checkpoint(config)).run(batch, probe)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5, 0.9])
def test_dropped_share_is_the_rate(rate):
    config = replace(recipe("translation"), **dict.fromkeys(RATES, rate))
    masks = draw_dropout_masks(config, batch_of(config), np.random.default_rng(3))
    numbers = np.concatenate([mask.ravel() for mask in masks.values()])
    assert numbers.dtype == np.float32
    # The values that torch.nn.functional.dropout turns ones into.
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(torch.ones(1000), rate).unique().numpy()
    np.testing.assert_allclose(np.unique(numbers), expected, rtol=2.0**-23)  # a quotient, rounded once or twice
    # Five standard errors of a binomial share: one seed in 1.7 million exceeds them.
    error = np.sqrt(rate * (1 - rate) / numbers.size)
    assert abs((numbers == 0).mean() - rate) < 5 * error
    assert len({mask.tobytes() for mask in masks.values()}) == len(masks), "no two masks are equal"


def test_masks_depend_on_the_generator():
    config = recipe("prenorm-tiny")
    first, again, other = (
        draw_dropout_masks(config, batch_of(config), np.random.default_rng(seed)) for seed in (4, 4, 5)
    )
    for name, mask in first.items():
        np.testing.assert_array_equal(mask, again[name])
        assert (mask != other[name]).any(), name


def torch_dropouts(model):
    """Switch on every dropout of a PyTorch model. Return them by the name of their site."""
    modules = {}
    for path, module in model.backend.transformer.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.train()
            modules[path] = module
    return modules


@pytest.mark.long(framework="jax", name="annotated-tiny")
@pytest.mark.long(framework="jax", name="prenorm-tiny")
@pytest.mark.parametrize("name", DECODERS)
def test_masks_have_the_effect_of_pytorch_dropout(framework, name, make_checkpoint):
    """The masks that ``torch.nn.Dropout`` drew give the same loss in every framework."""
    config = replace(recipe(name), **EVERYWHERE)
    checkpoint, batch = make_checkpoint(config), training_batch(config)
    model = impls.build("torch", checkpoint, dtype="float64")
    modules, drawn = torch_dropouts(model), {}
    for path, module in modules.items():
        module.register_forward_hook(
            lambda _, args, out, path=path: drawn.setdefault(path, []).append((args[0].detach(), out.detach()))
        )
    torch.manual_seed(0)
    expected, _ = model.loss_and_gradients(batch)
    masks = {}
    for site in dropouts(config):
        path = re.sub(r"\.\d$", "", site)
        if config.shared_embeddings:
            path = path.removeprefix("target_")
        # One module may serve several sites, in the order of execution.
        before, after = drawn[path].pop(0)
        masks[site] = ((after != 0) | (before == 0)).numpy() / (1 - 0.25)
        np.testing.assert_allclose(after.numpy(), before.numpy() * masks[site], rtol=2.0**-51)  # a product, a quotient
    assert not any(drawn.values()), "every PyTorch dropout is a site"
    loss, _ = impls.build(framework, checkpoint, dtype="float64").loss_and_gradients(batch, masks)
    undropped, _ = impls.build("torch", checkpoint, dtype="float64").loss_and_gradients(batch)
    # A loss of about 4, after some thousand roundings in float64.
    assert abs(loss - expected) < 1e-12
    assert abs(undropped - expected) > 1e-3


def test_mask_changes_only_the_values_after_it(implementation, make_checkpoint):
    """Values before the site stay, and the value at the site is multiplied."""
    config = recipe("translation-tiny")
    model: Any = impls.build(implementation, make_checkpoint(config), dtype="float32")
    batch: Any = batch_of(config)
    masks = draw_dropout_masks(config, batch, np.random.default_rng(6))
    site, value, after = (
        f"encoder.layers.0.{name}"
        for name in ("attention.output_dropout", "attention.output", "post_attention.residual")
    )
    plain, dropped = Probe(), Probe(dropout_masks=model._tensors({site: masks[site]}))
    model.run(batch, plain)
    model.run(batch, dropped)
    seen, changed = ({name: np.array(x.tolist()) for name, x in probe.record.items()} for probe in (plain, dropped))
    np.testing.assert_array_equal(changed[value], seen[value])
    residual = seen["embeddings.sum"]
    # A product and a sum of numbers below 4, each rounded once.
    np.testing.assert_allclose(changed[after], seen[value] * masks[site] + residual, rtol=0, atol=4 * 2.0**-23)
    assert (changed["output"] != seen["output"]).any()


def test_nothing_is_dropped_without_masks(implementation, make_checkpoint):
    """Whatever the rates are."""
    config = replace(recipe("translation-tiny"), **EVERYWHERE)
    checkpoint = make_checkpoint(config)
    bare = triglot.Checkpoint(replace(config, **dict.fromkeys(RATES, 0.0)), checkpoint.tensors)
    source, target = [[3, 4, 5]], [[0, 9, 10]]
    with_rates, without = (impls.build(implementation, made).forward(source, target) for made in (checkpoint, bare))
    np.testing.assert_array_equal(with_rates, without)
