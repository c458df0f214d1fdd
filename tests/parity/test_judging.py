"""Verdicts: a result can be wrong in many ways, and none of them passes."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from judged_model import CONFIG, NAME

import triglot
from triglot.parity.budgets import budget
from triglot.parity.checks import LOCAL_CHECKS, Check, expected_masks, judged_tokens
from triglot.parity.judge import Subject, failure, first_divergence, judge_check, merge
from triglot.parity.report import Divergence
from triglot.parity.revealing import revealing_checkpoints
from triglot.parity.trials.findings import Findings
from triglot.parity.trials.forward import ForwardTrial
from triglot.parity.truth import Reference, Truth
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import random_batch
from triglot.shared.model.schema import named_values
from triglot.shared.worker import WorkerError

SUBJECT = Subject("torch", "eager", "float32")


@pytest.fixture
def check():
    return Check("end_to_end", random_batch(CONFIG, [5, 2], np.random.default_rng(0)), "given", methods=True)


@pytest.fixture
def truth(check):
    """Return a truth of ones with a noise of 1e-7 at every entry of every named value, in shapes that fit the batch."""
    sizes = {"batch": 2, "target": 5, "source": 5, "position": 5}
    values = {
        name: np.ones([sizes.get(axis, 3) for axis in value.axes]) for name, value in named_values(CONFIG).items()
    }
    return Truth(values, {name: np.full(value.shape, 1e-7) for name, value in values.items()}, lambda _, __: {})


@pytest.fixture
def results(check, truth):
    """Return what a perfect implementation gives."""
    values = {name: value.astype(np.float32) for name, value in truth.values.items()}
    methods = {"api.encode": values["output"], "api.heads.pooler": values["heads.pooler"], "api.weights": np.array(0)}
    return {**values, **methods, **expected_masks(check.batch)}


def verdicts(rows):
    return {row.name: row for row in rows if row.verdict != "pass"}


def test_perfect_results_pass(check, truth, results):
    rows = judge_check(SUBJECT, check, truth, results, CONFIG)
    assert {row.verdict for row in rows} == {"pass"}
    assert len(rows) == len(truth.values) + 3 + 3  # masks, and the public methods


@pytest.mark.parametrize(("factor", "verdict"), [(0.99, "pass"), (1.01, "diverged")])
def test_an_error_over_the_budget_diverges(factor, verdict, check, truth, results):
    limit = budget(1e-7, 1.0, "float32")
    truth.values[NAME][0, 0, 0, 0] -= factor * limit  # in the float64 truth, where the change is exact
    rows = {row.name: row for row in judge_check(SUBJECT, check, truth, results, CONFIG)}
    assert rows[NAME].verdict == verdict
    assert rows[NAME].error == pytest.approx(factor * limit, rel=1e-6)
    assert rows[NAME].budget == limit
    assert rows[NAME].times_noise == pytest.approx(factor * limit / 1e-7, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_diverges(bad, check, truth, results):
    results[NAME][1, 0, 1, 0] = bad
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))[NAME]
    assert (row.verdict, row.error) == ("diverged", None)
    assert "NaN or infinity" in row.reason


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_overflow_of_the_reference_is_named_and_not_blamed_on_the_framework(bad, check, truth, results):
    truth.noise[NAME][0, 0, 0, 0] = bad
    results[NAME][0, 0, 0, 0] = np.inf
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))[NAME]
    assert (row.verdict, row.error) == ("skipped", None)
    assert "in float32 the reference itself is not finite" in row.reason


def test_an_overflow_at_a_padding_token_skips_nothing(check, truth, results):
    assert not check.batch.valid[1, 3]
    truth.noise[NAME][1, :, 3] = np.nan
    assert not verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))


def test_a_missing_value_diverges(check, truth, results):
    del results[NAME]
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))[NAME]
    assert (row.verdict, row.reason) == ("diverged", "the value is missing")


def test_an_unknown_value_diverges(check, truth, results):
    results["encoder.layers.0.surprise"] = np.zeros(3)
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))["encoder.layers.0.surprise"]
    assert (row.verdict, row.reason) == ("diverged", "the reference has no such value")


def test_a_shape_that_would_broadcast_diverges(check, truth, results):
    results[NAME] = results[NAME][:1]
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))[NAME]
    assert row.verdict == "diverged"
    assert row.reason == "the shape is (1, 3, 5, 3), expected (2, 3, 5, 3)"


def test_one_flipped_bit_of_a_mask_diverges(check, truth, results):
    results["masks.causal"] = results["masks.causal"].copy()
    results["masks.causal"][0, 0, 1, 3] = True
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))["masks.causal"]
    assert (row.check, row.verdict, row.reason) == ("masks", "diverged", "wrong entries: 1")


def test_a_mask_of_numbers_diverges(check, truth, results):
    results["masks.causal"] = results["masks.causal"].astype(np.float32)
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))["masks.causal"]
    assert row.reason == "the dtype is float32, expected bool"


def test_padding_tokens_are_not_judged_but_their_output_is(check, truth, results):
    assert not check.batch.valid[1, 3]
    results[NAME][1, :, 3] = np.nan
    results["encoder.layers.0.attention.scores"][1, :, 3, :] = 7
    results["encoder.layers.0.attention.scores"][1, :, 0, 3] = 7
    assert not verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))
    results["output"] = results["output"].copy()
    results["output"][1, 3, 0] = 7
    results["encoder.layers.0.attention.weights"][1, :, 0, 3] = 7
    assert set(verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))) == {
        "output",
        "encoder.layers.0.attention.weights",
        "api.encode",  # it no longer agrees with the output
    }


def test_real_targets_and_sources_are_judged(check):
    valid = check.batch.valid
    scores = judged_tokens("encoder.layers.0.attention.scores", check.batch, CONFIG)
    np.testing.assert_array_equal(scores, valid[:, None, :, None] & valid[:, None, None, :])
    assert judged_tokens("heads.pooler", check.batch, CONFIG) is None


def test_fresh_values_are_judged_at_padding_too(check, truth, results):
    results[NAME][1, :, 3] = 7
    fresh = replace(check, name="normal", values="normal", methods=False)
    values = {name: value for name, value in results.items() if not name.startswith("api")}
    assert NAME not in verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))
    assert NAME in verdicts(judge_check(SUBJECT, fresh, truth, values, CONFIG))


def test_a_value_of_another_dtype_diverges(check, truth, results):
    results[NAME] = results[NAME].astype(np.float64)
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))[NAME]
    assert (row.verdict, row.reason) == ("diverged", "the dtype is float64, expected float32")


@pytest.mark.parametrize("method", ["api.encode", "api.heads.pooler"])
def test_a_method_that_disagrees_with_the_trace_diverges(method, check, truth, results):
    results[method] = np.zeros_like(results[method])
    rows = judge_check(SUBJECT, check, truth, results, CONFIG)
    assert set(verdicts(rows)) == {method}
    assert first_divergence(rows, list(named_values(CONFIG))) == Divergence(method, "local", "api")


def test_changed_weights_diverge(check, truth, results):
    results["api.weights"] = np.array(2)
    row = verdicts(judge_check(SUBJECT, check, truth, results, CONFIG))["api.weights"]
    assert (row.check, row.verdict, row.reason) == ("api", "diverged", "changed tensors: 2")


def test_merging_batches_keeps_the_worst_row(check, truth, results):
    good = judge_check(SUBJECT, check, truth, results, CONFIG)
    results = {**results, NAME: results[NAME] + 1}
    bad = judge_check(SUBJECT, check, truth, results, CONFIG)
    for rows in (good + bad, bad + good):
        merged = merge(rows)
        assert len(merged) == len(good)
        assert verdicts(merged)[NAME].verdict == "diverged"


def test_a_failure_is_a_row_of_its_check_or_of_the_worker(check):
    stopped = failure(SUBJECT, check.name, WorkerError("gone", fatal=True))
    failed = failure(SUBJECT, check.name, WorkerError("bad", fatal=False))
    assert (stopped.check, failed.check) == ("worker", "end_to_end")
    assert {stopped.verdict, failed.verdict} == {"error"}


def test_more_runs_never_lower_the_noise(check, make_checkpoint):
    truth = Reference(make_checkpoint(CONFIG)).truth_of_values(check.batch, {})
    confirmed = truth.confirmed(8, {})
    assert all((confirmed.noise[name] >= truth.noise[name]).all() for name in truth.noise)
    assert any((confirmed.noise[name] > truth.noise[name]).any() for name in truth.noise)


LATE = "encoder.layers.1.feed_forward.output"


@pytest.fixture
def uncertain(truth):
    """Return a reference whose noise of one value shows only in further runs."""
    known = replace(truth, rounded=lambda _, __: {**truth.values, LATE: truth.values[LATE] + 1e-3})
    return SimpleNamespace(
        model=SimpleNamespace(config=CONFIG),
        truth_of_values=lambda *_: known,
        truth_of_steps=lambda *_: known,
        noise_of_steps=lambda *_: known.noise,
    )


def diverged_in(checks, trial, results):
    rows = trial.judge([("torch", results)])
    return {row.name for row in rows if row.verdict == "diverged" and row.check in checks}


@pytest.mark.parametrize("kind", [None, "normal"])
def test_each_step_that_exceeds_its_budget_is_judged_with_more_noise(kind, check, uncertain, results):
    """A budget from two runs may be too small, also after another step is wrong for certain."""
    fresh = replace(check, name=kind or check.name, values=kind)
    trial = ForwardTrial(fresh, {"torch": SUBJECT}, cast("Reference", uncertain), Findings(), 0)
    results[NAME] = results[NAME] + 1
    assert diverged_in(LOCAL_CHECKS, trial, results) == {NAME}
    results[LATE] = results[LATE] + np.float32(1e-3)
    assert diverged_in(LOCAL_CHECKS, trial, results) == {NAME}
    results[LATE] = results[LATE] + np.float32(1e-1)
    assert diverged_in(LOCAL_CHECKS, trial, results) == {NAME, LATE}


@pytest.mark.parametrize(("mode", "expected"), [("eager", {"output"}), ("jit", set())])
def test_a_compiler_may_compute_a_value_twice(mode, expected):
    """Once to return it, and again for the next step, rounded differently. The norm amplifies the difference."""
    checkpoint = revealing_checkpoints(CONFIG, "float32", 0)["extreme"]
    reference, config = Reference(checkpoint), checkpoint.config
    # With steps, as if a value had exceeded its budget from end to end.
    check = Check("extreme", random_batch(config, [5, 2], np.random.default_rng(0)), "extreme", steps=True)
    residual = f"encoder.layers.{config.layers - 1}.post_feed_forward.residual"
    results = reference.rounded_trace(check.batch, {}, 0, {})
    rounded_up = {residual: np.nextafter(results[residual], np.float32(np.inf))}
    again = reference.rounded_trace(check.batch, rounded_up, 0, {})
    results |= {name: again[name] for name in ("output", "heads.pooler")}

    def diverged(results):
        trial = ForwardTrial(check, {"torch": replace(SUBJECT, mode=mode)}, reference, Findings(), 0)
        return diverged_in(LOCAL_CHECKS, trial, results)

    assert diverged(results) == expected
    wrong = {name: results[name] * np.float32(1.001) for name in (residual, "heads.pooler")}
    assert diverged(results | wrong) >= wrong.keys(), "a wrong step must not become noise for the steps after it"


def test_what_is_wrong_from_end_to_end_is_judged_with_more_noise_unless_a_step_explains_it(check, uncertain, results):
    findings = Findings()
    trial = ForwardTrial(check, {"torch": SUBJECT}, cast("Reference", uncertain), findings, 0)
    results[LATE] = results[LATE] + np.float32(1e-3)
    assert not diverged_in([check.name], trial, results)
    findings.wrong_steps["torch"].add(NAME)
    assert diverged_in([check.name], trial, results) == {LATE}
    first = next(iter(named_values(CONFIG)))  # no step explains its error
    results[first] = results[first] + np.float32(1)
    assert diverged_in([check.name], trial, results) == {first}


def huge_scores(make_checkpoint):
    """Weights of 1e20, which give scores that no float32 holds."""
    weights = make_checkpoint("dygraph-tiny")
    tensors = {
        name: tensor * np.float32(1e20 if "query" in name or "key" in name else 1)
        for name, tensor in weights.tensors.items()
    }
    return Checkpoint(weights.config, tensors)


@pytest.mark.long(framework="jax")
def test_an_overflow_of_float32_makes_the_verdict_incomplete(make_checkpoint, framework):
    """It is not the fault of the framework."""
    report = triglot.check(huge_scores(make_checkpoint), [framework], isolate=False)
    assert report.verdict == "incomplete"
    assert {row.verdict for row in report.rows} == {"pass", "skipped"}


@pytest.mark.parametrize("tried_in", ["torch"])
def test_float64_holds_what_overflows_in_float32(tried_in, make_checkpoint):
    weights = huge_scores(make_checkpoint)
    assert triglot.check(weights, [tried_in], isolate=False, dtype="float64").verdict == "pass"
