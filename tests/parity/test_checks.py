"""The kinds of check: each can be chosen alone, and each judges what it says."""

from dataclasses import replace

import numpy as np
import pytest

import triglot
from triglot.parity.audit.bug import VECTORS
from triglot.parity.checks import KINDS
from triglot.parity.jobs import Job, Runner
from triglot.parity.judge import Subject
from triglot.parity.output_names import ENCODE, FORWARD
from triglot.parity.revealing import Weights
from triglot.parity.run import weights_for
from triglot.parity.trials.findings import Findings
from triglot.parity.trials.invariants import BASE, invariant_trials
from triglot.parity.trials.plan import plan_trials, selected_checks
from triglot.parity.truth import Reference
from triglot.shared import console
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.choices import CHECKS, DTYPES
from triglot.shared.errors import ConfigError
from triglot.shared.inputs import random_batches
from triglot.shared.model.recipes import recipe, recipes

SUBJECTS = {"torch": Subject("torch", "eager", "float32")}
VARIANTS = {
    "bert-base-tiny": ["base", "other_padding", "alone", "other_order", "overflowing_row", "no_segments"],
    "translation-tiny": ["base", "other_padding", "alone", "other_order", "later_targets", "overflowing_row"],
    "dygraph-tiny": ["base", "other_padding", "alone", "other_order", "overflowing_row"],
    "multihead-tiny": ["base", "other_padding", "alone", "other_order", "overflowing_row"],
    "vectors": ["base", "other_padding", "alone", "other_order", "later_targets", "overflowing_row"],
}


@pytest.mark.parametrize("kind", CHECKS)
def test_a_kind_can_be_chosen_alone(kind, make_checkpoint):
    """The choice does not depend on the framework."""
    name = "translation-tiny" if kind == "generation" else "bert-base-tiny"
    report = triglot.check(make_checkpoint(name), ["torch"], checks=[kind], isolate=False)
    assert report.verdict == "pass"
    assert {KINDS.get(row.check, row.check) for row in report.rows} == {kind}
    others = [other for other in CHECKS if other != kind and (other != "generation" or name == "translation-tiny")]
    assert report.unchecked == tuple(others)


def test_by_default_all_are_chosen_but_gradients_and_training():
    config = recipe("translation-tiny")
    assert selected_checks(None, config, "float32", "eager") == CHECKS[:5]
    assert selected_checks(["training", "masks", "masks"], config, "float32", "eager") == ("masks", "training")
    assert "generation" not in selected_checks(None, recipe("bert-base-tiny"), "float32", "eager")


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"start_id": None}, {"start_id": 2, "pad_id": 2}, {"masking_value": -10.0}])
def test_a_pair_that_cannot_generate_is_judged_without_generation(fields, make_checkpoint):
    fields = {"pad_id": 0, "start_id": 1, "end_id": 2, **fields}
    report = triglot.check(make_checkpoint(replace(recipe("annotated-tiny"), **fields)), ["torch"], isolate=False)
    assert report.verdict == "pass"
    assert "generation" not in {KINDS.get(row.check, row.check) for row in report.rows}


@pytest.mark.parametrize(
    ("chosen", "recipe_name", "dtype", "mode", "message"),
    [
        (["nonsense"], "bert-base-tiny", "float32", "eager", "no check 'nonsense'; expected some of masks, steps"),
        ([], "bert-base-tiny", "float32", "eager", "checks is empty; name some of masks, steps"),
        (["generation"], "bert-base-tiny", "float32", "eager", "'generation' is impossible here: .* no decoder"),
        (["gradients"], "multihead-tiny", "float32", "eager", "'gradients' is impossible here: .* no loss"),
        (
            ["gradients"],
            "bert-base-tiny",
            "float16",
            "eager",
            "noise of gradients is not known in float16; use float32",
        ),
        (["training"], "bert-base-tiny", "float32", "compiled", "mode 'compiled' cannot train"),
    ],
)
def test_an_impossible_choice_is_refused(chosen, recipe_name, dtype, mode, message, make_checkpoint):
    with pytest.raises(ConfigError, match=message):
        triglot.check(make_checkpoint(recipe_name), ["torch"], checks=chosen, dtype=dtype, mode=mode)


def trials_and_results(checkpoint):
    """Return the trials of the invariants, and what PyTorch returns in each."""
    weights = weights_for(checkpoint, "float32", 0)
    runner = Runner(lambda each, dtype, _: triglot.build("torch", each, dtype=dtype), "float32", "eager")
    trials = invariant_trials(references(weights, "float32"), SUBJECTS, Findings(), "float32", 0)
    jobs: list[Job] = [trial.job() for trial in trials]
    return trials, [runner.run(job.kind, weights[job.weights], job.batch, job.arrays) for job in jobs]


def references(weights: dict[Weights, Checkpoint], dtype: str) -> dict[Weights, Reference]:
    return {name: Reference(checkpoint, dtype) for name, checkpoint in weights.items()}


@pytest.mark.parametrize("recipe_name", VARIANTS)
def test_each_invariant_notices_a_change_of_its_own(recipe_name, make_checkpoint):
    config = VECTORS if recipe_name == "vectors" else recipe_name  # a pair that reads vectors
    trials, results = trials_and_results(make_checkpoint(config))
    names = []
    for trial, result in zip(trials, results, strict=True):
        moved = {name: value + np.float32(1e-3) for name, value in result.items()}
        assert all(row.verdict == "diverged" for row in trial.judge([("torch", moved)]))
        rows = list(trial.judge([("torch", result)]))
        assert {row.verdict for row in rows} == {"pass"}
        names += dict.fromkeys(row.name.split(".")[0] for row in rows)
    assert names == VARIANTS[recipe_name]


@pytest.mark.parametrize("change", [lambda x: x[:, :1], lambda x: x[:, :0], lambda x: x[:1], lambda x: x[..., :5]])
def test_each_invariant_notices_another_shape(change, make_checkpoint):
    trials, results = trials_and_results(make_checkpoint("bert-base-tiny"))
    list(trials[0].judge([("torch", results[0])]))
    for trial, result in zip(trials[1:], results[1:], strict=True):
        changed = change(result[ENCODE])
        rows = trial.judge([("torch", {**result, ENCODE: changed})])
        (row,) = [row for row in rows if row.name.endswith(".encode")]
        verdict = "pass" if changed.shape == result[ENCODE].shape else "diverged"  # "alone" has one row, one token
        assert row.verdict == verdict, trial._variant.name


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_overflows_is_not_finite(dtype, make_checkpoint):
    """Otherwise the invariant would prove nothing."""
    weights = weights_for(make_checkpoint("bert-base-tiny"), dtype, 0)
    trials = invariant_trials(references(weights, dtype), SUBJECTS, Findings(), dtype, 0)
    (job,) = [trial.job() for trial in trials if trial._variant.name == "overflowing_row"]
    model = triglot.build("torch", weights["overflowing"], dtype=dtype)
    result = Runner(lambda *_: model, dtype, "eager").run(job.kind, weights["overflowing"], job.batch, job.arrays)
    assert not np.isfinite(result[ENCODE][0]).any()
    assert np.isfinite(result[ENCODE][1:]).all()


def test_causality_is_judged_only_before_the_change(make_checkpoint):
    trials, results = trials_and_results(make_checkpoint("translation-tiny"))
    by_name = {trial._variant.name: result for trial, result in zip(trials, results, strict=True)}
    change = np.abs(by_name["later_targets"][FORWARD] - by_name[BASE][FORWARD]).max(axis=(0, 2))
    middle = len(change) // 2
    assert change[:middle].max() == 0
    assert change[middle:].max() > 1e-2


def test_an_invariant_that_the_reference_lacks_is_listed_and_not_judged():
    """A masking value of -3 lets padding contribute, by design."""
    config = replace(recipe("bert-base-tiny"), masking="add", masking_value=-3.0)
    report = triglot.check(triglot.initialize(config), ["torch"], checks=["invariants"], isolate=False)
    assert report.lacking == tuple(
        f"{name}.{method}" for name in ("other_padding", "alone") for method in ("heads.pooler", "encode")
    )
    assert report.verdict == "pass"
    assert {row.name.split(".")[0] for row in report.rows} == {"base", "other_order", "overflowing_row", "no_segments"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe_name", [name for name in recipes() if name.endswith("-tiny")])
def test_every_invariant_holds_for_the_recipes(recipe_name, dtype, make_checkpoint):
    """An invariant that rounding alone breaks in the reference would go unjudged in every framework."""
    weights = weights_for(make_checkpoint(recipe_name), dtype, 0)
    findings = Findings()
    for trial in invariant_trials(references(weights, dtype), SUBJECTS, findings, dtype, 0):
        list(trial.judge([]))
    # Inputs have to be finite in float32, so vectors cannot overflow in float64.
    reads_vectors = not recipe(recipe_name).source_vocabulary
    lacking = {name.split(".")[0] for name in findings.lacking}
    assert lacking == ({"overflowing_row"} if dtype == "float64" and reads_vectors else set())


def test_overflowing_scores_skip_the_judgement_of_generated_ids(make_checkpoint):
    checkpoint = make_checkpoint("translation-tiny")
    (head,) = checkpoint.config.heads_on_top
    table = np.full_like(checkpoint.tensors[f"heads.{head}.weight"], 6e4)
    large = Checkpoint(checkpoint.config, {**checkpoint.tensors, f"heads.{head}.weight": table})
    report = triglot.check(large, ["torch"], checks=["generation"], dtype="float16", isolate=False)
    (skipped,) = {(row.verdict, row.reason) for row in report.rows if row.verdict != "pass"}
    assert skipped == ("skipped", "logits are not finite in float16, so nothing can be judged; use a wider dtype")
    assert report.verdict == "incomplete"  # the generation from other weights was judged


def test_a_method_without_a_result_diverges(make_checkpoint):
    trials, results = trials_and_results(make_checkpoint("bert-base-tiny"))
    list(trials[0].judge([("torch", results[0])]))
    for trial in trials[1:]:
        rows = list(trial.judge([("torch", {})]))
        assert {(row.verdict, row.reason) for row in rows} == {("diverged", "the value is missing")}


def test_a_result_of_training_that_is_missing_or_has_another_shape_is_named(make_checkpoint):
    weights = weights_for(make_checkpoint("dygraph-tiny"), "float32", 0)
    batches = random_batches(weights["given"].config, 1, 2, 0)
    (trial,) = plan_trials(["training"], {}, weights, batches, SUBJECTS, Findings(), 0)
    runner, job = (
        Runner(lambda each, dtype, _: triglot.build("torch", each, dtype=dtype), "float32", "eager"),
        trial.job(),
    )
    results = dict(runner.run(job.kind, weights[job.weights], job.batch, job.arrays))
    assert {row.verdict for row in trial.judge([("torch", results)])} == {"pass"}
    name = "encoder.layers.0.attention.query.bias"
    size = len(results.pop(f"continued.weights.{name}"))
    results[f"fresh.second_moments.{name}"] = np.zeros((), np.float32)
    found = [(row.name, row.reason) for row in trial.judge([("torch", results)]) if row.verdict == "diverged"]
    assert found == [
        (f"fresh.second_moments.{name}", f"the shape is (), expected ({size},)"),
        (f"fresh.weights.{name}", "it cannot be judged without its moments, one of which is wrong"),
        (f"continued.weights.{name}", "the value is missing"),
    ]


def test_the_command_says_what_it_did_not_check(command):
    options = [f"--check={kind}" for kind in ("masks", "invariants")]
    code, out, err = command("parity", "bert-base-tiny", "--framework", "torch", *options)
    assert (code, err) == (0, "")
    assert "not checked: steps, forward, gradients, training (see --check)" in out
    assert "invariants" in out
    assert "every step alone" not in out


@pytest.mark.long
def test_the_command_shows_progress_where_there_is_no_terminal(command, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0)
    options = "--framework=torch", "--check=masks"
    _, _, err = command("parity", "bert-base-tiny", *options)
    assert err.startswith("parity of bert-base-tiny: 0 of ")
    assert command("parity", "bert-base-tiny", *options, "--quiet") == (0, "", "")


def test_a_full_disk_does_not_hide_the_verdict(command):
    code, out, err = command("parity", "bert-base-tiny", "--framework=torch", "--check=masks", "--json=/dev/full")
    assert code == 2
    assert out.endswith("verdict: pass\n")
    assert err.startswith("triglot: cannot write /dev/full: No space left on device")


@pytest.mark.parametrize(("dtype", "shown"), [("bfloat16", True), ("float32", False)])
def test_a_verdict_in_16_bits_lists_what_it_cannot_show(dtype, shown, command):
    code, out, _ = command("parity", "bert-base-tiny", "--framework=torch", "--check=masks", f"--dtype={dtype}")
    assert code == 0
    assert ("bugs that this number format is too coarse to show: attention weights of a row" in out) == shown
