"""An encoder learns from a teacher: the loss, its gradients and the steps, eager and compiled."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.impls.numpy_reference import training as reference
from triglot.parity import gradients as judged
from triglot.parity.output_names import name_gradients
from triglot.shared import inputs
from triglot.shared.errors import InputError, TrainingError
from triglot.shared.model.recipes import recipe
from triglot.shared.training.dropout_masks import draw_dropout_masks
from triglot.shared.training.plan import Plan

ENCODERS = ("bert-base-tiny", "dygraph-tiny")  # one has a head that the loss does not read, one has no embeddings


def taught_batch(config, seed=0) -> Any:
    """Return rows of several lengths, and a teacher with vectors at padding too."""
    generator = np.random.default_rng(seed)
    batch: Any = inputs.random_batch(config, [7, 3, 1, 5], generator)
    return inputs.taught(config, batch, generator.standard_normal((4, 7, config.hidden_size)))


@pytest.fixture(params=ENCODERS)
def checkpoint(request, make_checkpoint):
    return make_checkpoint(request.param)


def test_loss_is_the_mean_squared_error_of_torch(implementation, checkpoint):
    import torch

    batch: Any = taught_batch(checkpoint.config)
    oracle = impls.build("numpy", checkpoint)
    output = oracle.encode(batch.source, batch.valid, batch.segment_ids)
    pair = (torch.from_numpy(array[batch.valid]) for array in (output, batch.teacher))
    expected = torch.nn.MSELoss()(*pair).item()
    if implementation == "numpy":
        value = float(reference.loss(oracle.backend.transformer, *oracle._training_tensors(batch, None))[0])
    else:
        value, _ = impls.build(implementation, checkpoint, dtype="float64").loss_and_gradients(batch)
    # A mean of some hundred numbers of about 1, each off by some hundred roundings.
    assert value == pytest.approx(expected, rel=1024 * 2.0**-53)


def derivative_of(checkpoint, batch, masks):
    oracle = impls.build("numpy", checkpoint)
    tensors, dropped = oracle._training_tensors(batch, masks)
    exact, _ = reference.loss(oracle.backend.transformer, tensors, dropped)
    transformer = oracle.backend.transformer
    return float(exact), lambda direction: reference.derivative(transformer, tensors, dropped, direction)


def test_gradients_agree_with_the_derivatives_of_the_reference(framework, checkpoint):
    batch: Any = taught_batch(checkpoint.config)
    masks = draw_dropout_masks(checkpoint.config, batch, np.random.default_rng(1))
    loss, gradients = impls.build(framework, checkpoint, dtype="float64").loss_and_gradients(batch, masks)
    exact, derivative = derivative_of(checkpoint, batch, masks)
    assert judged.disagreement(loss, gradients, exact, derivative) <= 1
    for name, gradient in gradients.items():
        assert gradient.any() != name.startswith("heads."), name


def test_wrong_gradient_or_loss_is_detected(make_checkpoint):
    """Test the guard itself: the loss, or each tensor's largest gradient, is off by a millionth or NaN."""
    checkpoint = make_checkpoint("bert-base-tiny")
    batch: Any = taught_batch(checkpoint.config)
    loss, gradients = impls.build("torch", checkpoint, dtype="float64").loss_and_gradients(batch)
    truth = derivative_of(checkpoint, batch, {})
    assert judged.disagreement(loss, gradients, *truth) <= 1
    assert not judged.disagreement(loss * (1 + 1e-6), gradients, *truth) <= 1
    for name, gradient in gradients.items():
        # A key bias has only rounding errors, and heads have no gradient.
        if name.endswith("key.bias") or name.startswith("heads."):
            continue
        for factor in (1 + 1e-6, np.nan):
            wrong = gradient.copy()
            wrong[np.unravel_index(np.abs(wrong).argmax(), wrong.shape)] *= factor
            assert not judged.disagreement(loss, {**gradients, name: wrong}, *truth) <= 1, name


@pytest.mark.long(framework="jax")
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("name", ["bert-base-tiny", pytest.param("translation-tiny", marks=pytest.mark.audit)])
def test_compiled_training_agrees_with_eager_training(framework, name, make_checkpoint):
    """In float64 they may differ only by the order of sums. Paddle once kept a factor in float32."""
    # torch.compile takes long for each layer.
    config = replace(recipe(name), layers=1, decoder_layers=min(1, recipe(name).decoder_layers))
    checkpoint = make_checkpoint(config)
    if config.kind == "encoder":
        batch: Any = taught_batch(config)
    else:
        batch = triglot.teacher_forcing(config, [[3, 4, 5], [6, 7, 2]], [[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])
    eager, compiled = (impls.build(framework, checkpoint, dtype="float64", mode=mode) for mode in ("eager", "jit"))
    (loss, expected), (compiled_loss, gradients) = (model.loss_and_gradients(batch) for model in (eager, compiled))
    assert compiled_loss == pytest.approx(loss, rel=1024 * 2.0**-53)
    for tensor, gradient in expected.items():
        # Sums of at most some thousand terms, after some hundred operations.
        np.testing.assert_allclose(gradients[tensor], gradient, rtol=0, atol=4096 * 2.0**-53, err_msg=tensor)
    # Then compare the next step. Adam's first step is rate * g / (|g| + 1e-8): where |g| is above 1e-6, it is at least
    # 0.99 rates long, and the two modes differ by less than the rate times 4096 * 2^-53 / 1e-8 everywhere.
    before = compiled.encode(batch.source, batch.valid)
    for model in (eager, compiled):
        model.begin_training(Plan(rate=0.01))
        model.training_step(batch)
    after, eager_after = compiled.weights(), eager.weights()
    for tensor, gradient in expected.items():
        np.testing.assert_allclose(after[tensor], eager_after[tensor], rtol=0, atol=0.01 * 1e-4)
        large = np.abs(gradient) > 1e-6
        unread = config.kind == "encoder" and tensor.startswith("heads.")
        assert large.any() or unread or tensor.endswith("attention.key.bias"), tensor
        assert (np.abs(after[tensor] - checkpoint.tensors[tensor])[large] > 0.0098).all(), tensor
    # The program that was compiled before the step computes with the weights after it.
    change, error = (
        np.abs(compiled.encode(batch.source, batch.valid) - output).max()
        for output in (before, eager.encode(batch.source, batch.valid))
    )
    assert error < change / 1000


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("mode", ["eager", "jit"])
@pytest.mark.parametrize("name", ENCODERS)
def test_float32_gradients_are_within_their_budget(name, mode, framework, make_checkpoint):
    """A bug that changes them by 0.1% is detected. Mode "jit" uses packed tokens where padding contributes nothing."""
    # One layer, because torch.compile takes long for each.
    checkpoint = make_checkpoint(replace(recipe(name), layers=1))
    batch: Any = taught_batch(checkpoint.config)

    def derive(weights, inputs, masks, dtype):
        return impls.build("torch", weights, dtype=dtype).loss_and_gradients(inputs, masks)

    truth = judged.gradient_truth(checkpoint, batch, derive)
    values = name_gradients(*impls.build(framework, checkpoint, mode=mode).loss_and_gradients(batch))
    assert values.keys() == truth.values.keys()
    for name, value in values.items():
        allowed = truth.budget(name, "float32")
        assert np.abs(value - truth.values[name]).max() <= allowed, name
        size = np.abs(truth.values[name]).max()
        assert size == 0 or name.endswith("key.bias") or 1e-3 * size > allowed, f"{name}: 0.1% would not be detected"


@pytest.mark.long(mode="jit")
@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_training_reaches_the_teacher_and_changes_no_unread_weight(mode, framework, make_checkpoint):
    """Mode "jit" trains on packed tokens. The models that resume are eager."""
    checkpoint = make_checkpoint("bert-base-tiny")
    batch: Any = taught_batch(checkpoint.config)
    model = impls.build(framework, checkpoint, mode=mode)
    model.begin_training(Plan(rate=0.01))
    outcomes = [model.training_step(batch) for _ in range(40)]
    assert outcomes[-1].loss < outcomes[0].loss / 4
    assert {(outcome.right, outcome.counted) for outcome in outcomes} == {(0, 0)}
    weights, moments = model.weights(), model.moments()
    for name in ("heads.pooler.weight", "heads.pooler.bias"):
        np.testing.assert_array_equal(weights[name], checkpoint.tensors[name])
        assert not moments.first[name].any()
    # The moments are enough to resume in any framework: the loss after the next step depends on them.
    losses = {"uninterrupted": [model.training_step(batch).loss for _ in range(2)][1]}
    for other, resumed in ((framework, moments), ("torch", moments), ("jax", moments), ("paddle", None)):
        again = impls.build(other, triglot.Checkpoint(checkpoint.config, weights))
        again.begin_training(Plan(rate=0.01), resumed)
        losses[f"{other} {resumed is not None}"] = [again.training_step(batch).loss for _ in range(2)][1]
    forgotten = losses.pop("paddle False")
    first = losses["uninterrupted"]
    # Only the rounding of two float32 steps.
    assert max(abs(loss - first) for loss in losses.values()) < 1e-4 * first < 0.01 * abs(forgotten - first)


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (np.zeros((4, 7)), r"teacher is float64 \(4, 7\); expected float32 or float64 \(4, 7, 24\)"),
        (np.zeros((4, 7, 24), np.int32), r"teacher is int32 \(4, 7, 24\); expected float32 or float64"),
        (np.full((4, 7, 24), np.nan), "teacher holds numbers at a real token that are not finite in float32"),
        (np.full((4, 7, 24), 1e39), "teacher holds numbers at a real token that are not finite in float32"),
        ([[1], [1, 2]], "teacher has rows of different lengths"),
    ],
)
def test_teacher_that_does_not_fit_is_refused(teacher, message):
    config = recipe("bert-base-tiny")
    batch: Any = inputs.random_batch(config, [7, 3, 1, 5], np.random.default_rng(0))
    with pytest.raises(InputError, match=message):
        inputs.taught(config, batch, teacher)


def test_teacher_needs_a_batch_of_an_encoder():
    config = recipe("translation-tiny")
    batch: Any = inputs.random_batch(config, [3], np.random.default_rng(0))
    with pytest.raises(InputError, match=r"of kind encoder_decoder; expected an encoder"):
        inputs.taught(config, batch, np.zeros((1, 3, 32)))
    with pytest.raises(InputError, match=r"the batch is a list; expected a Batch"):
        inputs.taught(recipe("bert-base-tiny"), [[1]], np.zeros((1, 1, 24)))  # pyright: ignore[reportArgumentType]


def test_teacher_at_padding_does_not_count(framework, make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    batch: Any = taught_batch(checkpoint.config)
    other = np.where(batch.valid[:, :, None], batch.teacher, np.inf)
    model = impls.build(framework, checkpoint)
    again = inputs.taught(checkpoint.config, batch, other)
    assert model.loss_and_gradients(again)[0] == model.loss_and_gradients(batch)[0]


def test_batch_without_a_teacher_is_refused(implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint("bert-base-tiny"))
    with pytest.raises(InputError, match=r"the batch has no teacher.* add it with taught"):
        model.loss_and_gradients(inputs.encoder_batch(model.config, [[1, 2]]))


def test_attention_alone_has_no_loss(implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint("multihead-tiny"))
    batch: Any = inputs.random_batch(model.config, [3], np.random.default_rng(0))
    with pytest.raises(TrainingError, match=r"attention alone, which has no loss"):
        model.loss_and_gradients(batch)
