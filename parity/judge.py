"""From values to verdicts: the results of one framework in one check against what a correct one gives."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.named_values import ATTENDED, AVERAGED, OUTPUT
from triglot.shared.worker import WorkerError

from .budgets import budget
from .checks import (
    API,
    ATTEND,
    ENCODE,
    FORWARD,
    MASKS,
    WEIGHTS,
    WEIGHTS_AVERAGED,
    WORKER,
    Check,
    Expectation,
    distance,
    expected_masks,
    real,
)
from .report import Row, worst


@dataclass(frozen=True)
class Subject:
    """Who is judged."""

    framework: str
    mode: str
    dtype: str


def judge(
    subject: Subject,
    check: Check,
    expectation: Expectation,
    results: Mapping[str, Array],
    config: ModelConfig,
) -> list[Row]:
    """A row for each value that was expected, missing ones included, and for each that was not."""
    masks = expected_masks(check.batch)
    rows = [_judge_exact(subject, MASKS, name, mask, results.get(name)) for name, mask in masks.items()]
    for name, truth in expectation.truth.items():
        noise = expectation.noise[name]
        selected = real(name, check, config)
        rows.append(_judge_value(subject, check.name, name, truth, noise, results.get(name), selected))
    if check.values is None:
        rows += _judge_methods(subject, expectation, results, config)
    known = {row.name for row in rows}
    unknown = [name for name in results if name not in known]
    rows += [_diverged(subject, check.name, name, "the reference has no such value") for name in unknown]
    return rows


def merge(rows: Iterable[Row]) -> list[Row]:
    """One row for each check and value: of several batches, the one with the worst outcome."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.framework, row.check, row.name), []).append(row)
    return [worst(group) for group in groups.values()]


def failure(subject: Subject, check: Check, error: WorkerError) -> Row:
    """The row of a framework that gave no results: in this check, or, if it is gone, in this and all later ones."""
    name = WORKER if error.fatal else check.name
    return Row(name, subject.framework, subject.mode, subject.dtype, "", None, None, None, "error", str(error))


def _judge_methods(
    subject: Subject, expectation: Expectation, results: Mapping[str, Array], config: ModelConfig
) -> list[Row]:
    """``encode`` and ``heads`` have to return what the trace shows; the weights have to be the checkpoint's."""
    rows = [_judge_exact(subject, API, WEIGHTS, np.array(0), results.get(WEIGHTS))]
    methods = {f"heads.{head}": f"{API}.heads.{head}" for head in config.heads_on_top}
    if config.kind == "encoder_decoder":
        methods = dict.fromkeys(methods, FORWARD)
    methods |= {ATTENDED: ATTEND, AVERAGED: WEIGHTS_AVERAGED} if config.kind == "attention" else {OUTPUT: ENCODE}
    for name, method in methods.items():
        truth, noise = expectation.truth[name], expectation.noise[name]
        rows.append(_judge_value(subject, API, method, truth, noise, results.get(method), None))
    return rows


def _judge_value(
    subject: Subject,
    check: str,
    name: str,
    truth: Array,
    noise: float,
    value: Array | None,
    selected: Bools | None,
) -> Row:
    problem = _unlike(truth, value, subject.dtype)
    if value is None or problem:
        return _diverged(subject, check, name, problem)
    error = distance(value, truth, selected)
    magnitude = distance(truth, np.zeros_like(truth), selected)
    limit = budget(noise, magnitude, subject.dtype)
    if not math.isfinite(error):
        return _diverged(subject, check, name, f"the error is {error}: there is NaN or infinity among the values")
    if not math.isfinite(limit):
        return _diverged(subject, check, name, f"the budget is {limit}: the reference itself is not finite")
    verdict = "pass" if error <= limit else "diverged"
    reason = "" if verdict == "pass" else f"the error is {error / limit:.3g} times the budget"
    return Row(check, subject.framework, subject.mode, subject.dtype, name, error, noise, limit, verdict, reason)


def _judge_exact(subject: Subject, check: str, name: str, expected: Array, value: Array | None) -> Row:
    problem = _unlike(expected, value, expected.dtype.name)
    if value is None or problem:
        return _diverged(subject, check, name, problem)
    wrong = float(np.abs(value.astype(np.float64) - expected).sum())
    reason = f"{wrong:g} differ" if wrong else ""
    verdict = "diverged" if wrong else "pass"
    return Row(check, subject.framework, subject.mode, subject.dtype, name, wrong, 0.0, 0.0, verdict, reason)


def _unlike(expected: Array, value: Array | None, dtype: str) -> str:
    if value is None:
        return "the value is missing"
    if value.shape != expected.shape:
        return f"the shape is {value.shape}, expected {expected.shape}"
    if value.dtype.name != dtype:
        return f"the dtype is {value.dtype}, expected {dtype}"
    return ""


def _diverged(subject: Subject, check: str, name: str, reason: str) -> Row:
    return Row(check, subject.framework, subject.mode, subject.dtype, name, None, None, None, "diverged", reason)
