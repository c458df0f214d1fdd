"""Models that are wrong in ways that no planted bug is: each of these was once judged wrongly."""

from dataclasses import replace

import numpy as np
import pytest

from triglot import impls
from triglot.parity.audit.run import judge
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.recipes import recipe
from triglot.tables import parity_summary


class Wrong:
    """The NumPy reference in the place of a framework, in the dtype under test. Subclasses change a method."""

    def __init__(self, model):
        self.model = model
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self.model, name)


class PaddingIsSeven(Wrong):
    """Reads token 7 in the place of padding."""

    def trace(self, batch, replaced):
        source = np.where(batch.valid, batch.source, 7).astype(batch.source.dtype)
        return self.model.trace(replace(batch, source=source), replaced)

    def encode(self, ids, valid, *others):
        return self.model.encode(np.where(valid, ids, 7).astype(ids.dtype), valid, *others)

    def heads(self, ids, valid, *others):
        return self.model.heads(np.where(valid, ids, 7).astype(ids.dtype), valid, *others)


class LargeScores(Wrong):
    """Shows the right queries, and computes the scores from larger ones."""

    def trace(self, batch, replaced):
        name = "encoder.layers.0.attention.query"
        query = self.model.trace(batch, replaced)[name]
        return self.model.trace(batch, {**replaced, name: query * query.dtype.type(1.001)})


class LargeScoresOfOneToken(LargeScores):
    """The same, in rows of one token only."""

    def trace(self, batch, replaced):
        return (super() if batch.valid.shape[1] == 1 else self.model).trace(batch, replaced)


class FailsOnItsOwnValues(Wrong):
    """Fails unless its values are replaced."""

    def trace(self, batch, replaced):
        if not replaced:
            raise RuntimeError("out of memory")
        return self.model.trace(batch, replaced)


class FailsOnce(Wrong):
    """Fails in the call whose results the invariants are compared with."""

    def encode(self, *arguments):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of memory")
        return self.model.encode(*arguments)


class ForgetsBatches(Wrong):
    """Fails in a public method, but not with the shortest batch."""

    def encode(self, ids, *others):
        if ids.shape[1] > 1:
            raise RuntimeError("out of memory")
        return self.model.encode(ids, *others)


class OtherGradients(Wrong):
    """Returns gradients in another dtype, and one that no parameter has."""

    def __init__(self, model, change):
        super().__init__(model)
        self.change = change

    def loss_and_gradients(self, *arguments):
        loss, gradients = self.model.loss_and_gradients(*arguments)
        return loss, self.change(gradients)


class NotFiniteAfter(Wrong):
    """Has a weight that is NaN after so many steps of training."""

    def __init__(self, model, steps):
        super().__init__(model)
        self.steps = steps

    def training_step(self, *arguments):
        self.calls += 1
        return self.model.training_step(*arguments)

    def weights(self):
        weights = {name: np.array(tensor) for name, tensor in self.model.weights().items()}
        if self.calls >= self.steps:
            next(iter(weights.values()))[0] = np.nan
        return weights


def report_on(wrong, checkpoint, checks, framework="numpy", **options):
    def build(each, dtype, _):
        return wrong(impls.build(framework, each, dtype=dtype))

    return judge("torch", build, checkpoint, checks=checks, **options)


def test_what_is_wrong_at_padding_is_no_noise(make_checkpoint):
    """No step is judged there. With a weak masking value, what is wrong there reaches the real tokens."""
    config = replace(recipe("bert-base-tiny"), masking="add", masking_value=-3.0)
    assert report_on(PaddingIsSeven, make_checkpoint(config), ["forward"]).verdict == "diverged"


@pytest.mark.parametrize("check", ["steps", "masks"])
def test_a_failure_counts_whatever_is_checked(check, make_checkpoint):
    report = report_on(FailsOnItsOwnValues, make_checkpoint("bert-base-tiny"), [check])
    assert report.verdict == ("incomplete" if check == "steps" else "error")
    assert "RuntimeError: out of memory" in parity_summary(report)


def test_a_failed_method_is_a_row_of_the_methods(make_checkpoint):
    report = report_on(ForgetsBatches, make_checkpoint("bert-base-tiny"), ["forward"])
    assert report.verdict == "incomplete"
    assert {row.verdict for row in report.rows if row.check == "api"} == {"pass", "error"}


def test_a_wrong_step_is_named_even_if_steps_are_not_selected(make_checkpoint):
    report = report_on(LargeScores, make_checkpoint("bert-base-tiny"), ["forward"])
    first = report.first_divergence["torch"]
    assert (first.name, first.kind) == ("encoder.layers.0.attention.scores", "local")


def test_the_inputs_of_a_divergence_are_named(make_checkpoint):
    report = report_on(LargeScoresOfOneToken, make_checkpoint("bert-base-tiny"), ["forward", "steps"])
    (sentence,) = report.divergences
    assert "encoder.layers.0.attention.scores (local)" in sentence
    assert sentence.endswith("on the inputs of length_one")


def test_invariants_without_a_base_are_not_judged(make_checkpoint):
    report = report_on(FailsOnce, make_checkpoint("bert-base-tiny"), ["invariants"])
    assert [(row.check, row.verdict) for row in report.rows] == [("invariants", "error")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda gradients: {name: value.astype(np.float64) for name, value in gradients.items()},
            "the dtype is float64, expected float32",
        ),
        (lambda gradients: {**gradients, "surprise": np.ones(3, np.float32)}, "the reference has no such value"),
        (lambda gradients: dict(list(gradients.items())[1:]), "the value is missing"),
    ],
)
def test_other_gradients_diverge(change, reason, make_checkpoint):
    report = report_on(
        lambda model: OtherGradients(model, change), make_checkpoint("bert-base-tiny"), ["gradients"], "torch"
    )
    assert report.verdict == "diverged"
    assert {row.reason for row in report.rows if row.verdict == "diverged"} == {reason}


@pytest.mark.parametrize("steps", [1, 2])
def test_training_that_ends_in_nan_diverges(steps, make_checkpoint):
    """After the step that resumes training, no model can be made of the weights; after the next one, no truth."""
    report = report_on(
        lambda model: NotFiniteAfter(model, steps), make_checkpoint("bert-base-tiny"), ["training"], "torch"
    )
    assert report.verdict == "diverged"
    assert any("NaN" in row.reason for row in report.rows)


def test_a_summary_says_why_values_were_skipped(make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    huge = {
        name: tensor * np.float32(1e20 if ".query." in name or ".key." in name else 1)
        for name, tensor in checkpoint.tensors.items()
    }
    report = report_on(Wrong, Checkpoint(checkpoint.config, huge), ["steps"], "torch")
    assert report.verdict == "incomplete"
    assert "values could not be judged: in float32 the reference itself is not finite here" in parity_summary(report)
