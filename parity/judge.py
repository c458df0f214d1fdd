"""The verdict: compare what an implementation returns with the truth, and find where it first goes wrong."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triglot.shared.arrays import Array, Bools, as_received
from triglot.shared.choices import CHECKS
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import ATTENDED, AVERAGED, DECODED, OUTPUT, named_values
from triglot.shared.worker import WorkerError

from .budgets import CONFIRMING_RUNS
from .checks import KINDS, LOCAL_CHECKS, Check, expected_masks, judged_tokens
from .output_names import API, ATTEND, AVERAGED_WEIGHTS, CHANGED_WEIGHTS, ENCODE, FORWARD, MASKS
from .report import WORKER, AnyJudgement, Divergence, Judgement, Row, worst
from .scopes import scopes_of, worst_share
from .truth import Truth, Values, distances


@dataclass(frozen=True)
class Subject:
    """The implementation under test."""

    framework: str
    mode: str
    dtype: str


def judge_check(
    subject: Subject, check: Check, truth: Truth, results: Mapping[str, Array], config: ModelConfig
) -> list[Row]:
    """Return a row for each expected value, whether it is there or missing, and for each unexpected one."""
    masks = expected_masks(check.batch)
    rows = [to_row(subject, MASKS, judge_exact(name, results.get(name), mask)) for name, mask in masks.items()]
    rows += judge_steps(subject, check.name, check, truth, results, config)
    if check.methods:
        rows += [to_row(subject, API, judgement) for judgement in _judge_methods(subject, truth, results, config)]
    expected = {row.name for row in rows}
    unexpected = [name for name in results if name not in expected]
    reason = "the reference has no such value"
    return rows + [to_row(subject, check.name, diverged(name, reason)) for name in unexpected]


def judge_steps(
    subject: Subject, check_name: str, check: Check, truth: Truth, results: Mapping[str, Array], config: ModelConfig
) -> list[Row]:
    """Return a row for each expected value, whether it is there or missing."""
    return [
        to_row(
            subject,
            check_name,
            judge_value(
                name,
                results.get(name),
                truth.values[name],
                truth.noise[name],
                name,
                subject,
                config,
                # Probe values are defined at padding too.
                judged_tokens(name, check.batch, config) if check.values is None else None,
                narrow=check_name in LOCAL_CHECKS,
            ),
        )
        for name in truth.values
    ]


def own_inputs(results: Mapping[str, Array], truth: Truth, dtype: str) -> dict[str, Array]:
    """Return the values of a framework that the reference can continue with: those of the right shape."""
    return {
        name: as_received(results[name], dtype)
        for name, value in truth.values.items()
        if name in results and results[name].shape == value.shape
    }


def judge_value(
    name: str,
    value: Array | None,
    truth: Array,
    noise: Array,
    true_name: str,
    subject: Subject,
    config: ModelConfig,
    selected: Bools | None = None,
    *,
    narrow: bool = True,
) -> Judgement:
    """Judge a value by its budgets, over the ``selected`` entries (None: all). Shape and dtype have to be right.

    ``true_name``: the named value that ``truth`` and ``noise`` are of. ``narrow``: also judge each channel and row, if
    the value has such scopes (``scopes.py``).
    """
    wrong = mismatch(value, truth.shape, subject.dtype)
    if value is None or wrong:
        return diverged(name, wrong)
    scopes = scopes_of(named_values(config).get(true_name), config, subject.dtype) if narrow else ()
    share = worst_share(scopes, distances(value, truth), noise, truth, selected, subject.dtype)
    if not math.isfinite(share.noise):
        reason = f"in {subject.dtype} the reference itself is not finite here; use a wider dtype"
        return Judgement(name=name, verdict="skipped", reason=reason)
    return judge_error(name, share.error, share.budget, share.noise, share.where)


def judge_error(name: str, error: float, limit: float, noise: float | None = None, where: str = "") -> Judgement:
    """Judge an error by its budget, ``limit``. An error that is not finite is a divergence."""
    if not math.isfinite(error):
        return diverged(name, f"the error is {error}: there is NaN or infinity among the values")
    if not math.isfinite(limit):
        return diverged(name, f"the budget is {limit}: the reference itself is not finite")
    passed = error <= limit
    place = f" of {where}" if where else ""
    reason = "" if passed else f"the error is {error / limit if limit else math.inf:.3g} times the budget{place}"
    verdict = "pass" if passed else "diverged"
    return Judgement(name=name, error=error, noise=noise, budget=limit, verdict=verdict, reason=reason)


def judge_exact(name: str, value: Array | None, expected: Array, problem: str = "wrong entries") -> Judgement:
    """Judge a value that has to be equal bit for bit. ``problem``: what the number of differences counts."""
    wrong = mismatch(value, expected.shape, expected.dtype.name)
    if value is None or wrong:
        return diverged(name, wrong)
    error = float(np.abs(value.astype(np.float64) - expected).sum())
    reason = f"{problem}: {error:g}" if error else ""
    verdict = "diverged" if error else "pass"
    return Judgement(name=name, error=error, noise=0.0, budget=0.0, verdict=verdict, reason=reason)


def diverged(name: str, reason: str) -> Judgement:
    """Return the judgement of a value that is wrong in a way that no number describes."""
    return Judgement(name=name, verdict="diverged", reason=reason)


def confirmed(
    judge: Callable[[Truth], list[AnyJudgement]],
    truth: Truth,
    judgements: list[AnyJudgement],
    moves: Values | None = None,
    explained: Collection[str] = (),
) -> tuple[Truth, list[AnyJudgement]]:
    """Judge again with noise from more runs, as long as more values exceed their budgets than are ``explained``.

    ``judgements``: those with the noise that is known. ``moves``: see ``Truth.confirmed``.
    """
    for runs in CONFIRMING_RUNS:
        if exceeding(judgements) - {*explained}:
            truth = truth.confirmed(runs, moves or {})
            judgements = judge(truth)
    return truth, judgements


def exceeding(judgements: Iterable[Judgement]) -> set[str]:
    """Return the names of the values that exceed a budget that noise widens. That of an exact value is 0."""
    return {judgement.name for judgement in judgements if judgement.verdict == "diverged" and judgement.budget}


def failure(subject: Subject, check: str, error: WorkerError) -> Row:
    """Return the row of a framework that gave no results: in this check, or, if it died, in all that follow."""
    return to_row(subject, WORKER if error.fatal else check, Judgement(name="", verdict="error", reason=str(error)))


def merge(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each check and value: of several batches, the worst."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.framework, row.check, row.name), []).append(row)
    return [worst(group) for group in groups.values()]


def first_divergence(rows: Iterable[Row], order: Sequence[str]) -> Divergence | None:
    """Return the first value, in the ``order`` of the computation, that exceeded its budget; None if none did.

    A step that was given its inputs and still exceeded its budget is wrong by itself: its divergence is local. A local
    divergence outranks every value that is wrong end to end, which may have inherited its error. A wrong mask comes
    first. If no value of a forward pass is wrong, return the first other result that is, such as the result of a public
    method.
    """
    rows = [row for row in rows if row.verdict == "diverged"]
    if not rows:
        return None
    place = {name: index for index, name in enumerate(order)}
    # The first value of all has nothing to inherit an error from.
    local = [row for row in rows if row.check in (MASKS, *LOCAL_CHECKS) or row.name == order[0]]
    inherited = [row for row in rows if KINDS.get(row.check) == "forward" and row.check != API]
    if candidates := local or inherited:
        # Masks, and values that the reference does not have, have no place in the order: they come first.
        name = min((row.name for row in candidates), key=lambda name: place.get(name, -1))
        check = worst(row for row in candidates if row.name == name).check
        return Divergence(name, "local" if local else "inherited", check)
    later = (API, *CHECKS)
    row = min(rows, key=lambda row: later.index(row.check))
    return Divergence(row.name, "local", row.check)


def methods_of(config: ModelConfig) -> dict[str, str]:
    """Return the public method that returns each named value, as ``api.<method>``."""
    methods = {f"heads.{head}": f"{API}.heads.{head}" for head in config.heads_on_top}
    if config.kind == "encoder_decoder":
        methods = dict.fromkeys(methods, FORWARD) or {DECODED: FORWARD}
    return methods | (
        {ATTENDED: ATTEND, AVERAGED: AVERAGED_WEIGHTS} if config.kind == "attention" else {OUTPUT: ENCODE}
    )


def _judge_methods(
    subject: Subject, truth: Truth, results: Mapping[str, Array], config: ModelConfig
) -> list[Judgement]:
    """Judge the results of the public methods against the truth, and against the same framework's values with a probe.

    The weights have to be unchanged.
    """
    judgements = [judge_exact(CHANGED_WEIGHTS, results.get(CHANGED_WEIGHTS), np.array(0), "changed tensors")]
    for name, method in methods_of(config).items():
        value, noise = results.get(method), truth.noise[name]
        judgement = judge_value(method, value, truth.values[name], noise, name, subject, config)
        if name in results and results[name].shape == noise.shape:
            agreement = judge_value(method, value, results[name], noise, name, subject, config)
            if agreement.verdict == "diverged":
                agreement = replace(agreement, reason=f"{agreement.reason}, compared with the same run with a probe")
            judgement = worst([judgement, agreement])
        judgements.append(judgement)
    return judgements


def mismatch(value: Array | None, shape: tuple[int, ...], dtype: str | None = None) -> str:
    """Return how shape or dtype differ from what was expected; empty if both are right. ``dtype`` None: any."""
    if value is None:
        return "the value is missing"
    if value.shape != shape:
        return f"the shape is {value.shape}, expected {shape}"
    return "" if dtype in (None, value.dtype.name) else f"the dtype is {value.dtype}, expected {dtype}"


def to_row(subject: Subject, check: str, judgement: Judgement) -> Row:
    """Return the judgement of a value in a check."""
    return Row(check=check, **vars(subject), **vars(judgement))
