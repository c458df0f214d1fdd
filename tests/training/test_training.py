"""The loss, its gradients and the optimizer of every framework, compared with independent code."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.impls.numpy_reference import training as reference
from triglot.parity.judge import methods_of
from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError, InputError, TrainingError
from triglot.shared.model.recipes import recipe
from triglot.shared.training.dropout_masks import draw_dropout_masks
from triglot.shared.training.loop import TrainingLoop
from triglot.shared.training.plan import Moments, Plan

RECIPES = ("translation-tiny", "annotated-tiny", "prenorm-tiny")


def labelled_batch(config, seed=0, rows=4) -> Any:
    """Return targets longer than their sources, with padding in both, and labels that do not count."""
    generator = np.random.default_rng(seed)
    source = generator.integers(3, config.source_vocabulary, (rows, 9))
    target = generator.integers(3, config.target_vocabulary, (rows, 12))
    source[0, 6:] = target[1, 7:] = config.pad_id if config.pad_id is not None else 2
    if config.pad_id is not None:
        return inputs.teacher_forcing(config, source, target)
    pair = inputs.pair_batch(config, source, target[:, :-1])
    return inputs.labelled(config, pair, np.where(target[:, 1:] % 5 == 0, -1, target[:, 1:]))


@pytest.fixture(params=RECIPES)
def task(request, make_checkpoint):
    """A checkpoint, a batch with labels, and dropout masks."""
    checkpoint = make_checkpoint(request.param)
    batch: Any = labelled_batch(checkpoint.config)
    return checkpoint, batch, draw_dropout_masks(checkpoint.config, batch, np.random.default_rng(1))


def test_loss_is_the_cross_entropy_of_torch(implementation, task):
    """The label -1 is PyTorch's ``ignore_index``; log-probabilities go to its NLLLoss."""
    import torch

    checkpoint, batch, _ = task
    oracle = impls.build("numpy", checkpoint)
    scores = torch.from_numpy(oracle.forward(batch.source, batch.target, batch.valid, batch.target_valid))
    loss = torch.nn.NLLLoss if "log_probabilities" in checkpoint.config.heads_on_top else torch.nn.CrossEntropyLoss
    expected = loss(ignore_index=-1)(scores.flatten(0, 1), torch.from_numpy(batch.labels).long().flatten()).item()
    assert (batch.labels == -1).any()
    if implementation == "numpy":
        value = float(reference.loss(oracle.backend.transformer, *oracle._training_tensors(batch, None))[0])
    else:
        value, _ = impls.build(implementation, checkpoint, dtype="float64").loss_and_gradients(batch)
    # The mean of a few dozen numbers of at most 10, each off by some hundred roundings.
    assert value == pytest.approx(expected, rel=0, abs=1024 * 2.0**-53 * 10)


@pytest.mark.long(framework="jax", recipe_name="translation-tiny")
@pytest.mark.parametrize(
    ("recipe_name", "dtype"),
    [("translation-tiny", "float32"), ("dygraph-tiny", "float64")],
)
def test_parity_judges_gradients_and_training(framework, recipe_name, dtype, make_checkpoint):
    """Without dropout and with it, and steps of Adam: see ``parity/trials/derivatives.py``."""
    checks = ["gradients", "training"]
    report = triglot.check(make_checkpoint(recipe_name), [framework], isolate=False, checks=checks, dtype=dtype)
    assert report.verdict == "pass"
    tensors, methods = len(make_checkpoint(recipe_name).tensors), len(methods_of(make_checkpoint(recipe_name).config))
    assert [len([row for row in report.rows if row.check == check]) for check in checks] == [
        1 + tensors,
        1 + 10 * tensors + methods,  # gradients, and three times two moments and the weights
    ]


def test_complex_step_detects_a_wrong_gradient(task):
    """Test the guard itself with one gradient off by a thousandth."""
    checkpoint, batch, _ = task
    oracle = impls.build("numpy", checkpoint)
    _, gradients = impls.build("torch", checkpoint, dtype="float64").loss_and_gradients(batch)
    name = "heads.logits.weight" if "heads.logits.weight" in gradients else "heads.log_probabilities.weight"
    direction = np.ones(gradients[name].shape)
    tensors, _ = oracle._training_tensors(batch, None)
    exact = reference.derivative(oracle.backend.transformer, tensors, {}, {name: direction})
    wrong = gradients[name].copy()
    place = np.unravel_index(np.abs(wrong).argmax(), wrong.shape)
    wrong[place] *= 1.001
    scale = 1024 * 2.0**-53 * np.abs(wrong).sum()
    assert abs(gradients[name].sum() - exact) <= scale < abs(wrong.sum() - exact)


def training_of(checkpoint):
    """Return the training run stored in a checkpoint."""
    assert checkpoint.training is not None
    return checkpoint.training


@pytest.mark.long(framework="jax")
def test_the_rate_falls_at_its_step(framework, make_checkpoint):
    """Not one step later: a quotient that a compiler rounds down would have it so at 41, as at 55 and 97."""
    decay_steps = 41
    checkpoint = make_checkpoint("translation-tiny")
    batch: Any = labelled_batch(checkpoint.config)
    weights, name = dict(checkpoint.tensors), "heads.logits.weight"
    ones = {key: np.ones_like(tensor) for key, tensor in weights.items()}
    lengths = []
    for steps in (decay_steps - 1, decay_steps):
        model = impls.build(framework, checkpoint)
        plan = Plan(rate=0.01, decay=0.01, samples_per_epoch=decay_steps, batch_size=1, epochs_per_decay=1)
        model.begin_training(plan, Moments(steps, ones, ones))
        model.training_step(batch)
        lengths.append(np.abs(model.weights()[name] - weights[name]).max())
    assert lengths[1] < 0.05 * lengths[0]


@pytest.mark.long(framework="jax")
def test_a_model_can_be_trained_twice(framework, make_checkpoint):
    """Anew, and from moments: each time as a model that has not been trained before."""
    checkpoint = make_checkpoint("translation-tiny")
    batch: Any = labelled_batch(checkpoint.config)
    model = impls.build(framework, checkpoint)
    model.begin_training(Plan())
    model.training_step(batch)
    kept_weights, kept_moments = model.weights(), model.moments()
    assert all(np.abs(kept_moments.first[name]).max() for name in kept_moments.first if not name.endswith("key.bias"))
    for moments in (None, kept_moments):
        fresh = impls.build(framework, Checkpoint(checkpoint.config, kept_weights))
        again = impls.build(framework, checkpoint)
        again.begin_training(Plan())
        again.training_step(batch)
        for each in (fresh, again):
            each.begin_training(Plan(), moments)
            each.training_step(batch)
        for actual, expected in (
            (again.weights(), fresh.weights()),
            (again.moments().first, fresh.moments().first),
        ):
            assert expected
            for name, tensor in expected.items():
                np.testing.assert_array_equal(actual[name], tensor, err_msg=name)


def test_wrong_moments_masks_and_dtypes_are_refused(framework, make_checkpoint):
    checkpoint = make_checkpoint("translation-tiny")
    batch: Any = labelled_batch(checkpoint.config)
    masks = draw_dropout_masks(checkpoint.config, batch, np.random.default_rng(0))
    model = impls.build(framework, checkpoint)
    wrong = {name: np.zeros(3, np.float32) for name in checkpoint.tensors}
    with pytest.raises(TrainingError, match=r"the moments do not match the model: training\.first_moment.*has shape"):
        model.begin_training(Plan(), Moments(1, wrong, wrong))
    first = next(iter(masks))
    for changed, message in (
        ({"nonsense": np.zeros(1)}, "dropout_masks: .* is missing"),
        ({**masks, "zz": np.zeros(1)}, "dropout_masks: zz is unknown; pass one mask for each dropout"),
        ({**masks, first: masks[first][:1]}, r"dropout_masks: .* is float32 \(1, .*; expected finite numbers \(4, "),
        ({**masks, first: masks[first] * np.nan}, "expected finite numbers"),
    ):
        with pytest.raises(InputError, match=message):
            model.loss_and_gradients(batch, changed)
    if framework != "paddle":  # it has no bfloat16 on a CPU
        with pytest.raises(TrainingError, match=r"dtype of a training run is 'bfloat16'; expected one of float32"):
            impls.build(framework, checkpoint, dtype="bfloat16").begin_training(Plan())


def test_loss_that_is_not_finite_ends_the_training_unsaved(framework, make_checkpoint, tmp_path):
    checkpoint = make_checkpoint("translation-tiny")
    name = "heads.logits.weight"
    huge = {**checkpoint.tensors, name: np.full_like(checkpoint.tensors[name], 3e38)}
    with pytest.raises(TrainingError, match=r"the loss of step 1 is (inf|nan); lower the rate"):
        triglot.train(Checkpoint(checkpoint.config, huge), framework, tmp_path / "run.npz", steps=2)
    assert not (tmp_path / "run.npz").exists()


@pytest.mark.long(framework="jax")
def test_outcome_is_that_of_the_weights_before_the_step(framework, make_checkpoint):
    checkpoint = make_checkpoint("translation-tiny")
    batch: Any = labelled_batch(checkpoint.config)
    model = impls.build(framework, checkpoint)
    scores = model.forward(batch.source, batch.target)
    model.begin_training(Plan())
    outcome = model.training_step(batch)
    assert outcome.right == (scores.argmax(axis=-1) == batch.labels).sum()
    assert (model.forward(batch.source, batch.target) != scores).any(), "training changes the model itself"


def test_training_does_not_change_the_checkpoint(framework, make_checkpoint):
    checkpoint = make_checkpoint("translation-tiny")
    before = checkpoint.digest
    model = impls.build(framework, checkpoint)
    model.begin_training(Plan())
    model.training_step(labelled_batch(checkpoint.config))
    assert checkpoint.digest == before


@pytest.mark.long(dtype="float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resumed_training_is_bit_identical(framework, dtype, make_checkpoint, tmp_path):
    """Resume from a file, in mid-epoch and after the rate fell by a factor that binary cannot represent."""
    checkpoint = make_checkpoint("translation-tiny")
    plan = Plan(samples_per_epoch=16, batch_size=8, epochs_per_decay=1, decay=0.7, seed=4)
    straight = triglot.train(checkpoint, framework, steps=11, plan=plan, dtype=dtype)
    triglot.train(checkpoint, framework, tmp_path / "run.npz", steps=9, plan=plan, dtype=dtype)
    resumed = triglot.train(triglot.load(tmp_path / "run.npz"), framework, steps=11)
    assert {tensor.dtype.name for tensor in resumed.tensors.values()} == {dtype}
    assert resumed.digest == straight.digest
    for part in ("first", "second"):
        resumed_moments, straight_moments = (
            getattr(training_of(resumed).moments, part),
            getattr(training_of(straight).moments, part),
        )
        for name, tensor in resumed_moments.items():
            np.testing.assert_array_equal(tensor, straight_moments[name], err_msg=name)
    np.testing.assert_array_equal(training_of(resumed).history.loss, training_of(straight).history.loss)
    np.testing.assert_array_equal(training_of(resumed).history.accuracy, training_of(straight).history.accuracy)


@pytest.mark.long(framework="jax")
def test_plan_switches_dropout(framework, make_checkpoint):
    checkpoint = make_checkpoint("translation-tiny")
    losses = {
        dropout: training_of(triglot.train(checkpoint, framework, steps=1, plan=Plan(dropout=dropout))).history.loss[0]
        for dropout in (True, False)
    }
    batch = TrainingLoop(impls.build(framework, checkpoint), checkpoint, Plan()).batch(0)
    expected, _ = impls.build(framework, checkpoint).loss_and_gradients(batch)
    assert losses[False] == pytest.approx(expected, rel=1e-6)
    assert losses[True] != losses[False]


def test_on_step_stops_the_training(make_checkpoint, tmp_path):
    seen = []

    def on_step(step, rate, outcome):
        seen.append((step, rate, outcome.counted))
        return step < 3

    trained = triglot.train(
        make_checkpoint("translation-tiny"), "torch", tmp_path / "run.npz", steps=9, on_step=on_step
    )
    assert [step for step, _, _ in seen] == [1, 2, 3]
    assert training_of(trained).moments.steps == len(training_of(trained).history.loss) == 3
    assert triglot.load(tmp_path / "run.npz").digest == trained.digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 0}, "rate of the training run is 0; expected a number above 0, at most 1"),
        ({"rate": float("nan")}, "rate of the training run is nan"),
        ({"decay": 1.5}, "decay of the training run is 1.5"),
        ({"decay": True}, "decay of the training run is True"),
        ({"batch_size": 0}, "batch_size of the training run is 0; expected a whole number of 1 or more"),
        ({"epochs_per_decay": 1.0}, "epochs_per_decay of the training run is 1.0"),
        ({"seed": -1}, "seed of the training run is -1; expected a whole number of 0 or more"),
        ({"samples_per_epoch": 7}, "samples_per_epoch of the training run is 7; expected at least one batch of 8"),
        ({"dropout": 1}, "dropout of the training run is 1; expected true or false"),
    ],
    ids=str,
)
def test_impossible_plan_is_refused(fields, message):
    with pytest.raises(TrainingError, match=message):
        Plan(**fields)


def test_plan_survives_json():
    plan = Plan(rate=1, seed=3, dropout=False)
    assert Plan.from_dict(plan.to_dict()) == plan
    with pytest.raises(TrainingError, match=r"plan of a training run.*expected.*momentum"):
        Plan.from_dict({**plan.to_dict(), "momentum": 0.9})
    with pytest.raises(TrainingError, match=r"plan of a training run.*expected.*wrong.*seed"):
        Plan.from_dict({name: value for name, value in plan.to_dict().items() if name != "seed"})


def test_labels_that_do_not_fit_are_refused():
    config = recipe("translation-tiny")
    batch = inputs.pair_batch(config, [[3, 4]], [[0, 5, 6]])
    for labels, message in (
        ([[5, 6]], r"labels is int64 \(1, 2\); expected integers \(1, 3\)"),
        ([[5.0, 6.0, 1.0]], r"labels is float64 \(1, 3\)"),
        ([[5, 6, 41]], "labels holds 41; expected ids from 0 to 40, or -1 for none"),
        ([[5, 6, -2]], "labels holds -2"),
        ([[-1, -1, -1]], "no label counts"),
    ):
        with pytest.raises(InputError, match=message):
            inputs.labelled(config, batch, labels)
    for target, message in (
        ([[0]], r"\(1, 1\); expected integers \(B, T\), of at least two"),
        ([[0, 2, 2]], "no label"),
    ):
        with pytest.raises(InputError, match=message):
            triglot.teacher_forcing(config, [[3, 4]], target)


def test_labels_at_padding_do_not_count():
    config = recipe("translation-tiny")
    batch = inputs.labelled(config, inputs.pair_batch(config, [[3, 4]], [[0, 5, 2]]), [[5, 1, 7]])
    np.testing.assert_array_equal(batch.labels, [[5, 1, -1]])


def test_missing_labels_and_a_step_before_begin_training_are_refused(framework, make_checkpoint):
    model = impls.build(framework, make_checkpoint("translation-tiny"))
    batch: Any = labelled_batch(model.config)
    with pytest.raises(TrainingError, match=r"no training run has begun; call begin_training first"):
        model.training_step(batch)
    with pytest.raises(TrainingError, match="no training run has begun"):
        model.moments()
    with pytest.raises(InputError, match="the batch has no labels; make it with teacher_forcing"):
        model.loss_and_gradients(replace(batch, labels=None))


def test_reference_does_not_train(make_checkpoint):
    checkpoint = make_checkpoint("translation-tiny")
    with pytest.raises(FrameworkError, match=r"reference has no gradients.*choose torch"):
        triglot.train(checkpoint, "numpy", steps=1)


def test_gradients_of_the_reference_agree_with_torch(make_checkpoint):
    """The reference takes a forward pass for every weight, so the model is very small."""
    config = replace(
        recipe("translation-tiny"), layers=1, decoder_layers=1, hidden_size=4, heads=1, key_size=2, value_size=2,
        feed_forward_size=3, source_vocabulary=6, target_vocabulary=5,
    )  # fmt: skip
    checkpoint = make_checkpoint(config)
    batch = triglot.teacher_forcing(config, [[3, 4, 5]], [[0, 3, 4, 1]])
    loss, gradients = impls.build("numpy", checkpoint).loss_and_gradients(batch)
    expected_loss, expected = impls.build("torch", checkpoint, dtype="float64").loss_and_gradients(batch)
    assert loss == pytest.approx(expected_loss, rel=1e-14)
    for name, gradient in gradients.items():
        # Numbers of about 1 after at most some thousand roundings.
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=4096 * 2.0**-53, err_msg=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0; expected a whole number, 1 or more"),
        ({"save_every": 0}, "save_every is 0"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16'; expected 'float32'"),
        ({"steps": 2}, "steps is 2; expected more than the 2"),
        ({"dtype": "float64"}, "dtype is 'float64'; expected 'float32'"),
        ({"plan": Plan(rate=0.5)}, "has rate 0.002, not 0.5"),
    ],
    ids=["steps", "save_every", "dtype", "already there", "another dtype", "another plan"],
)
def test_impossible_training_is_refused(change, message, make_checkpoint):
    checkpoint = triglot.train(make_checkpoint("translation-tiny"), "torch", steps=2)
    with pytest.raises(triglot.TriglotError, match=message):
        triglot.train(checkpoint, "torch", **{"steps": 3, **change})


def test_moments_of_another_model_are_refused(make_checkpoint):
    trained = triglot.train(make_checkpoint("translation-tiny"), "torch", steps=1)
    moments = training_of(trained).moments
    wrong = replace(training_of(trained), moments=Moments(1, {**moments.first, "nothing": np.zeros(1)}, moments.second))
    with pytest.raises(triglot.CheckpointError, match=r"unexpected training\.first_moment\.nothing"):
        Checkpoint(trained.config, trained.tensors, training=wrong)
