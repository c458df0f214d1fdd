"""A report: the first divergence, the verdict, the exit code, and the sentences for what failed."""

import json
import re
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from judged_model import CONFIG, NAME

from triglot.impls import numpy_nn
from triglot.parity.judge import first_divergence
from triglot.parity.report import Divergence, Report, Row, worst
from triglot.shared.worker import WorkerError


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


def test_a_report_is_printed_in_a_few_lines():
    died = row(framework="jax", check="worker", verdict="error", budget=None, reason="gone")
    printed = report([row(verdict="diverged", error=3e-6), row("b"), died], ["torch", "jax"])
    assert str(printed).splitlines() == [
        "m: i",
        "number format float32, mode eager",
        f"torch: 2 values, the worst {NAME} in local: 300% of its budget",
        "jax gave no results: gone",
        "verdict: diverged",
    ]
    assert repr(printed) == "<Report of m: diverged, 3 rows>"


@pytest.mark.parametrize(
    ("changes", "has_remark"),
    [({}, False), ({"mode": "compiled"}, True), ({"mode": "compiled", "check": "worker"}, False)],
)
def test_a_report_in_mode_compiled_says_which_program_its_values_come_from(changes, has_remark):
    assert ("come from the deployed program" in str(report([row(**changes)]))) == has_remark


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


def test_what_could_not_be_judged_does_not_hide_a_divergence():
    rows = [row(error=None, budget=None, verdict="skipped"), row(error=2.0, budget=1.0, verdict="diverged")]
    assert worst(rows).verdict == "diverged"
    assert worst([row(), row(error=None, budget=None, verdict="skipped")]).verdict == "skipped"
