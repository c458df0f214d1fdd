"""Verdicts: a result can be wrong in many ways, and none of them passes."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import triglot
from triglot.impls import numpy_nn
from triglot.parity.budgets import budget, noise_in
from triglot.parity.checks import CHECKS, LOCAL_CHECKS, Check, expected_masks, judged_tokens, plan, row_lengths
from triglot.parity.judge import Subject, failure, first_divergence, judge_check, merge
from triglot.parity.report import Divergence, Report, Row, worst
from triglot.parity.revealing import revealing_checkpoints
from triglot.parity.trials.findings import Findings
from triglot.parity.trials.forward import ForwardTrial
from triglot.parity.truth import Reference, Truth, distance
from triglot.shared.arrays import LARGEST_FLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import random_batch, random_batches
from triglot.shared.model.recipes import recipe
from triglot.shared.model.schema import named_values
from triglot.shared.worker import WorkerError

SUBJECT = Subject("torch", "eager", "float32")
CONFIG = recipe("bert-base-tiny")
NAME = "encoder.layers.0.attention.query"


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


def test_budget_is_eight_times_the_noise_and_four_units_of_the_largest_value():
    assert budget(1e-7, 2.0, "float32") == pytest.approx(8e-7 + 4 * 2.0**-24 * 2, rel=1e-12)
    assert budget(0.0, 2.0, "float64") == 4 * 2.0**-53 * 2
    assert budget(0.0, 1.0, "float16") == 4 * 2.0**-11
    assert budget(0.0, 1e-6, "float16") == 4 * 2.0**-25, "half the distance between float16's smallest numbers"
    assert noise_in("float32", 1e-7) == 1e-7
    assert noise_in("float64", 1e-7) == 1e-7 * 2.0**-29


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


def test_distance_covers_only_the_selected_entries():
    assert distance(np.array([1.0, 5.0]), np.array([1.5, 1.0]), None) == 4.0
    assert distance(np.array([1.0, 5.0]), np.array([1.5, 1.0]), np.array([True, False])) == 0.5
    assert np.isnan(distance(np.array([np.nan]), np.array([1.0]), None))


def test_merging_batches_keeps_the_worst_row(check, truth, results):
    good = judge_check(SUBJECT, check, truth, results, CONFIG)
    results = {**results, NAME: results[NAME] + 1}
    bad = judge_check(SUBJECT, check, truth, results, CONFIG)
    for rows in (good + bad, bad + good):
        merged = merge(rows)
        assert len(merged) == len(good)
        assert verdicts(merged)[NAME].verdict == "diverged"


def test_a_row_without_a_number_is_the_worst():
    rows = [row(error=1.0, budget=0.5, verdict="diverged"), row(error=None, budget=None, verdict="diverged")]
    assert worst(rows).error is None
    assert worst([row(error=0.1, budget=1.0), row(error=0.2, budget=10.0)]).error == 0.1
    assert worst([row(error=0.0, budget=0.0), row(error=0.1, budget=1.0)]).error == 0.1


def row(name=NAME, check="local", framework="torch", **changes):
    passed = Row(
        check=check,
        framework=framework,
        mode="eager",
        dtype="float32",
        name=name,
        error=0.0,
        noise=1e-7,
        budget=1e-6,
        verdict="pass",
    )
    return replace(passed, **changes)


ORDER = ["a", "b", "c"]


def test_first_local_divergence_is_the_first_in_the_computation():
    rows = [row("c", verdict="diverged"), row("b", verdict="diverged"), row("a")]
    assert first_divergence(rows, ORDER) == Divergence("b", "local", rows[0].check)


def test_a_local_divergence_outranks_an_inherited_one():
    rows = [row("b", "end_to_end", verdict="diverged"), row("c", "normal", verdict="diverged")]
    assert first_divergence(rows, ORDER) == Divergence("c", "local", "normal")


def test_the_first_value_has_nothing_to_inherit():
    rows = [row("a", "maximum_length", verdict="diverged"), row("b", "end_to_end", verdict="diverged")]
    assert first_divergence(rows, ORDER) == Divergence("a", "local", "maximum_length")


def test_a_divergence_without_a_local_error_is_inherited():
    rows = [row("b", "end_to_end", verdict="diverged")]
    assert first_divergence(rows, ORDER) == Divergence("b", "inherited", "end_to_end")


def test_the_check_of_a_divergence_is_the_one_with_the_largest_error_that_shows_it():
    rows = [
        row("b", "normal", verdict="diverged", error=2.0),
        row("b", "large", verdict="diverged", error=3.0),
        row("b", "end_to_end", verdict="diverged", error=9.0),
    ]
    assert first_divergence(rows, ORDER) == Divergence("b", "local", "large")


def test_a_wrong_mask_comes_first():
    rows = [row("a", "local", verdict="diverged"), row("masks.padding", "masks", verdict="diverged")]
    assert first_divergence(rows, ORDER) == Divergence("masks.padding", "local", "masks")


def test_no_divergence():
    assert first_divergence([row("a"), row("b", verdict="error")], ORDER) is None


def report(rows, frameworks=("torch",)):
    return Report("m", "i", CONFIG.to_dict(), "0", {}, tuple(frameworks), tuple(rows))


@pytest.mark.parametrize(
    ("rows", "frameworks", "verdict", "code"),
    [
        ([row()], ["torch"], "pass", 0),
        ([row(), row(verdict="diverged")], ["torch"], "diverged", 1),
        ([row(), row(verdict="error")], ["torch"], "incomplete", 2),
        ([row(), row(verdict="skipped")], ["torch"], "incomplete", 2),
        ([row()], ["torch", "jax"], "incomplete", 2),
        ([row(verdict="error"), row(framework="jax", verdict="diverged")], ["torch", "jax"], "diverged", 1),
        ([row(verdict="error")], ["torch"], "error", 2),
        ([], ["torch"], "error", 2),
        ([], [], "error", 2),
    ],
)
def test_verdict_and_exit_code(rows, frameworks, verdict, code):
    assert report(rows, frameworks).verdict == verdict
    assert report(rows, frameworks).exit_code == code


def test_a_crash_is_reported_with_its_place():
    with pytest.raises(AttributeError) as caught:
        numpy_nn.linear(cast("np.ndarray", None), np.ones((1, 1)), None)
    reason = str(WorkerError.of(caught.value, fatal=False))
    assert re.fullmatch(r"AttributeError: .* \(impls/numpy_nn.py, line \d+, in linear\)", reason)
    assert str(WorkerError.of(AssertionError(), fatal=False)) == "AssertionError"


@pytest.mark.parametrize(
    ("kind", "check", "place"),
    [
        ("local", "local", "a (local)"),
        ("local", "large", "a (local), in large"),
        ("inherited", "end_to_end", "a (inherited), in end_to_end"),
    ],
)
def test_a_divergence_is_reported_with_its_check(kind, check, place):
    rows = [row("a", "holes"), row("a", check, verdict="diverged", reason="NaN")]
    diverged = replace(report(rows), first_divergence={"torch": Divergence("a", kind, check)})
    assert diverged.divergences == [f"first divergence of torch: {place}: NaN"]


def test_the_same_failure_in_several_checks_is_one_sentence():
    failed = [row(check=check, verdict="error", reason="bad") for check in ("normal", "large")]
    died = row(check="worker", verdict="error", reason="gone")
    sentences = ["torch gave no results in normal, large: bad", "torch gave no results: gone"]
    assert report([*failed, died]).failures == sentences


def test_a_failure_is_a_row_of_its_check_or_of_the_worker(check):
    stopped = failure(SUBJECT, check.name, WorkerError("gone", fatal=True))
    failed = failure(SUBJECT, check.name, WorkerError("bad", fatal=False))
    assert (stopped.check, failed.check) == ("worker", "end_to_end")
    assert {stopped.verdict, failed.verdict} == {"error"}


def test_report_is_valid_json_with_the_contracted_fields():
    found = replace(
        report([row(error=None, reason="NaN")]), first_divergence={"torch": Divergence("a", "local", "local")}
    )
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    fields = ["schema", "model", "inputs", "config", "weights_digest", "environment", "verdict", "checks"]
    assert list(content) == [*fields, "first_divergence", "amplification", "unchecked", "lacking", "blind", "originals"]
    assert content["schema"] == "triglot.parity/1"
    assert list(content["checks"][0]) == [
        *("check", "framework", "mode", "dtype", "name", "error", "noise", "budget", "verdict", "reason")
    ]
    assert content["checks"][0]["error"] is None
    assert content["first_divergence"] == {"torch": {"name": "a", "kind": "local", "check": "local"}}


def test_the_plan_has_every_check_and_the_extreme_lengths():
    batches = random_batches(CONFIG, 2, 3, seed=0)
    checks = plan(CONFIG, CONFIG, batches, seed=0, dtype="float32")
    assert {check.name for check in checks} | {"masks", "api", "local"} == set(CHECKS)
    by_name = {check.name: check.batch for check in checks}
    assert not by_name["masking"].valid[-1].any()
    assert by_name["short_rows"].rows > 32
    assert not by_name["short_rows"].valid.all()
    assert by_name["maximum_length"].valid.shape[1] == CONFIG.source_max_length
    repeated = by_name["repeated_tokens"].arrays()["source"]
    assert repeated.shape[1] > 1
    assert (repeated == repeated[:, :1]).all()
    assert not all(check.batch.valid.all() for check in checks if check.name == "normal")


def test_noise_includes_the_rounding_of_a_saturated_tanh():
    """NumPy gives exactly 1 where the kernels of frameworks give slightly less, so the noise runs give less too."""
    x = np.full(1000, 12, np.float32)
    assert (numpy_nn.tanh(x) == 1).all()
    with numpy_nn.permuted_contractions(0):
        rounded = numpy_nn.tanh(x)
    assert set(np.unique(rounded)) == {np.float32(1), np.float32(1 - 2.0**-24)}
    assert numpy_nn.tanh(x.astype(np.float64)).dtype == np.float64


def test_noise_includes_sums_that_begin_with_the_bias():
    """Partial sums that start at a bias of 1 round like numbers around 1; the product alone rounds much finer."""
    generator = np.random.default_rng(0)
    x, weight = (generator.standard_normal(shape).astype(np.float32) * 1e-3 for shape in ((64, 300), (300, 1)))
    bias = np.ones(1, np.float32)
    exact = numpy_nn.linear(x.astype(np.float64), weight.astype(np.float64), bias.astype(np.float64))
    bias_first = bias + np.zeros((64, 1), np.float32)
    for term in range(300):
        bias_first += x[:, term : term + 1] * weight[term]
    product_first = numpy_nn.linear(x, weight, bias)
    with numpy_nn.permuted_contractions(0):
        noise = np.abs(numpy_nn.linear(x, weight, bias) - exact).max()
    legitimate = np.abs(bias_first - exact).max()
    assert legitimate > 8 * np.abs(product_first - exact).max()
    assert legitimate <= 8 * noise


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_includes_exact_variances(dtype):
    """Some kernels compute a variance in a wider format. For equal entries it is then zero, but the mean is rounded."""
    x = np.full((64, 108), 207.41972, dtype)
    with numpy_nn.permuted_contractions(0):
        mean, variance = numpy_nn.mean(x), numpy_nn.variance(x)
    exact = (variance == 0) & (mean != x[:, :1])
    assert 8 < exact.sum() < 56


def test_probe_values_are_drawn_in_float64(make_checkpoint):
    """Sums of float32 numbers are exact in float64 in almost every order, so their noise would be zero."""
    batches = random_batches(CONFIG, 1, 4, 0)
    check = next(check for check in plan(CONFIG, CONFIG, batches, seed=0, dtype="float64") if check.name == "offset")
    values = Reference(make_checkpoint(CONFIG), "float64").replacements(check, 0)
    assert {value.dtype.name for value in values.values()} == {"float64"}
    assert all((value != value.astype(np.float32)).mean() > 0.99 for value in values.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probes_for_masking_have_scores_close_to_the_masking_value(dtype, make_checkpoint):
    config = replace(CONFIG, masking="fill", masking_value=-1e4)
    batches = random_batches(config, 1, 4, 0)
    check = next(check for check in plan(config, config, batches, seed=0, dtype=dtype) if check.name == "masking")
    values = Reference(make_checkpoint(config), dtype).replacements(check, 0)
    scores = values["encoder.layers.0.attention.scores"][:, :, 1::2]
    near = scores[..., : (scores.shape[3] + 1) // 2]
    assert np.abs(near + 1e4).max() < 8


@pytest.mark.parametrize(("positions", "longest"), [(2, 2), (48, 48), (49, 24)])
def test_a_short_model_has_its_greatest_length_in_most_batches(positions, longest):
    config = replace(CONFIG, source_max_length=positions)
    assert max(row_lengths(config)) == longest
    checks = plan(config, config, random_batches(config, 1, 4, 0), seed=0, dtype="float32")
    (full,) = (check.batch for check in checks if check.name == "maximum_length")
    assert full.valid.shape == ((4, longest) if longest == positions else (1, positions))
    assert full.valid[:, [0, -1]].all()
    assert full.valid.all() == (positions == 2)


PROCESSES = [("", "dan", ""), ("", "da", ""), ("n", "da", "n"), ("n", "da", ""), ("", "na", "")]


@pytest.mark.parametrize("processes", PROCESSES, ids=str)
@pytest.mark.parametrize("embedding_process", ["", "nd"])
@pytest.mark.parametrize("name", ["bert-base-tiny", "translation-tiny"])
def test_extreme_weights_do_not_overflow_float16(name, embedding_process, processes):
    pre, post, final = processes
    config = replace(
        recipe(name),
        **{"embedding_process": embedding_process, "embedding_scale": True, "normalize_memory": False},
        **{"pre_process": pre, "post_process": post, "final_process": final},
    )
    extreme = revealing_checkpoints(config, "float16", 0)["extreme"]
    checks = plan(config, extreme.config, random_batches(config, 1, 4, 0), seed=0, dtype="float16")
    (check,) = (check for check in checks if check.name == "extreme")
    largest = max(np.abs(value).max() for value in Reference(extreme, "float16").trace(check.batch, {}).values())
    assert largest < LARGEST_FLOAT16


def test_equal_rows_round_differently_in_the_noise():
    """The kernels of frameworks round equal rows differently, depending on where in a block they are."""
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.standard_normal((1, 300)).astype(np.float32), 8, axis=0)
    weight = generator.standard_normal((300, 40)).astype(np.float32)
    assert np.ptp(numpy_nn.linear(rows, weight, None), axis=0).max() == 0
    with numpy_nn.permuted_contractions(0):
        assert np.ptp(numpy_nn.linear(rows, weight, None), axis=0).max() > 0
        assert np.ptp(numpy_nn.mean(rows)) > 0


def test_equal_terms_round_differently_in_the_noise():
    """No order distinguishes them, but the kernels of frameworks divide a sum in different ways."""
    terms = np.full((64, 69), 188.32504, np.float32)
    with numpy_nn.permuted_contractions(0):
        assert np.unique(numpy_nn.mean(terms)).size > 1
        assert np.unique(numpy_nn.linear(terms, np.full((69, 1), 0.1, np.float32), None)).size > 1


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


def test_what_could_not_be_judged_does_not_hide_a_divergence():
    rows = [row(error=None, budget=None, verdict="skipped"), row(error=2.0, budget=1.0, verdict="diverged")]
    assert worst(rows).verdict == "diverged"
    assert worst([row(), row(error=None, budget=None, verdict="skipped")]).verdict == "skipped"


def test_an_overflow_of_float32_makes_the_verdict_incomplete(make_checkpoint, framework):
    """Weights of 1e20 give scores that no float32 holds. That is not the fault of the framework."""
    weights = make_checkpoint("dygraph-tiny")
    tensors = {
        name: tensor * np.float32(1e20 if "query" in name or "key" in name else 1)
        for name, tensor in weights.tensors.items()
    }
    report = triglot.check(Checkpoint(weights.config, tensors), [framework], isolate=False)
    assert report.verdict == "incomplete"
    assert {row.verdict for row in report.rows} == {"pass", "skipped"}
    assert (
        triglot.check(Checkpoint(weights.config, tensors), [framework], isolate=False, dtype="float64").verdict
        == "pass"
    )
