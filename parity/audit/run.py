"""Plant the bugs of the catalogue, and record whether parity and simpler rules catch each."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import numpy as np

from triglot.impls.model import Model
from triglot.parity.audit.bug import Bug
from triglot.parity.audit.catalogue import BUGS
from triglot.parity.checks import row_lengths
from triglot.parity.jobs import Build
from triglot.parity.judge import Subject
from triglot.parity.pool import LocalPool
from triglot.parity.report import Report
from triglot.parity.run import compare
from triglot.parity.trials.plan import selected_checks
from triglot.shared.arrays import HALVES, LARGEST_FLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores, limit_threads
from triglot.shared.inputs import Batch, random_batch
from triglot.shared.model.config import ModelConfig

from . import padiff, rules
from .audited_model import AuditedModel, audited_model, audited_model_of
from .mutants import hidden, planted
from .wild import wild_checkpoint

CHUNK = 10  # correct models that a process tries in a row
NOTHING = ""  # in place of a bug: a correct implementation


@dataclass(frozen=True)
class Outcome:
    """The result of planting one bug in one framework, with the weights and inputs of one seed.

    ``only_without_probe``: the bug was planted only in what the public methods run. ``found_at``: the name of the first
    divergence. ``check``: the check that shows it. ``times_budget``: its error in multiples of the budget or, if
    nothing diverged, the largest share of a budget in the whole report. ``located``: whether the first divergence is
    local and in the right place. ``complaints``: for each simpler rule that could run (``rules.py``, ``padiff.py``),
    whether it complains. For a correct implementation, ``bug`` is empty and the model is the wild one of the seed
    (``wild.py``).
    """

    bug: str
    framework: str
    dtype: str
    seed: int
    only_without_probe: bool
    verdict: str
    found_at: str = ""
    located: bool = False
    check: str = ""
    times_budget: float = 0.0
    complaints: Mapping[str, bool] = field(default_factory=dict[str, bool])


@dataclass(frozen=True)
class Task:
    """What one process does at a time: one bug, or a correct implementation, in one framework.

    ``with_rules``: try the simpler rules too.
    """

    bug: str
    framework: str
    dtype: str
    seeds: Sequence[int]
    only_without_probe: bool = False
    with_rules: bool = True


def tasks(frameworks: Sequence[str], bugs: Sequence[str], dtype: str, *, seeds: int, models: int) -> list[Task]:
    """Return what to do for every framework: every bug with so many seeds, and so many correct models."""
    work: list[Task] = []
    for framework in frameworks:
        for only_without_probe in (False, True) if seeds else ():
            tried = [bug for bug in bugs if is_possible(BUGS[bug], dtype, only_without_probe=only_without_probe)]
            # Bugs of the same model share their truths, unless they have weights of their own.
            tried.sort(key=lambda bug: (repr(BUGS[bug].recipe), bool(BUGS[bug].weights)))
            work += [Task(bug, framework, dtype, range(seeds), only_without_probe) for bug in tried]
        for first in range(0, models, CHUNK):
            work.append(Task(NOTHING, framework, dtype, range(first, min(first + CHUNK, models))))
    return work


def is_possible(bug: Bug, dtype: str, *, only_without_probe: bool) -> bool:
    """Return whether a bug can be tried.

    Gradients are not judged in 16 bits, only a forward pass has a probe, and float16 does not hold every weight.
    """
    if only_without_probe and not bug.in_forward_pass:
        return False
    if dtype == "float16" and any(np.abs(tensor).max() > LARGEST_FLOAT16 for tensor in bug.weights.values()):
        return False
    return not (dtype in HALVES and {"gradients", "training"} & {*bug.checks})


def run_all(work: Sequence[Task], jobs: int | None = None) -> Iterator[list[Outcome]]:
    """Yield the outcomes of every task, in order. ``jobs``: processes, each with one thread; None: one per core."""
    before = dict(os.environ)
    limit_threads(1)
    try:
        with ProcessPoolExecutor(jobs or cores(), get_context("spawn")) as pool:
            yield from pool.map(run, work)
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(task: Task) -> list[Outcome]:
    """Return an outcome for every seed of a task."""
    return list(_correct(task) if task.bug == NOTHING else _planted(task))


def _planted(task: Task) -> Iterator[Outcome]:
    bug = BUGS[task.bug]
    with ExitStack() as stack:
        build = stack.enter_context(planted(task.framework, bug.file, bug.change(task.framework)))
        if task.only_without_probe:
            build = hidden(stack.enter_context(planted(task.framework, "attention.py", {})), build)
        for seed in task.seeds:
            yield _outcome(task, seed, build, audited_model(task.bug, seed, task.dtype), bug)


def _correct(task: Task) -> Iterator[Outcome]:
    with planted(task.framework, "attention.py", {}) as healthy:
        for seed in task.seeds:
            yield _outcome(
                task, seed, healthy, audited_model_of(wild_checkpoint(seed, task.dtype), seed, task.dtype), None
            )
            if "jax" in sys.modules:  # its compiled code takes memory and cannot be reused for another model
                sys.modules["jax"].clear_caches()


def _outcome(task: Task, seed: int, build: Build, model: AuditedModel, bug: Bug | None) -> Outcome:
    report = _judge(task.framework, build, model, seed, task.dtype, bug.checks if bug else None)
    outcome = Outcome(task.bug, task.framework, task.dtype, seed, task.only_without_probe, report.verdict)
    try_rules = task.with_rules and not task.only_without_probe and (bug is None or bug.in_forward_pass)
    if try_rules and report.verdict != "error":
        implementation = build(model.checkpoint, task.dtype, "eager")
        outcome = replace(outcome, complaints=_complaints(task.framework, implementation, model, report, seed))
    divergence = report.first_divergence.get(task.framework)
    if divergence is None:
        share = max((row.budget_used for row in report.rows if row.verdict == "pass"), default=0.0)
        return replace(outcome, times_budget=share)
    row = report.row(task.framework, divergence.check, divergence.name)
    right = bug is not None and _is_place(divergence.name, bug, only_without_probe=task.only_without_probe)
    return replace(
        outcome,
        found_at=divergence.name,
        located=right and divergence.kind == "local",
        check=row.check,
        times_budget=row.budget_used,
    )


def _complaints(
    framework: str, implementation: Model, model: AuditedModel, report: Report, seed: int
) -> dict[str, bool]:
    """Return which simpler rules complain. ``report``: of the implementation, on the same inputs."""
    batch = batch_of(model.checkpoint.config, seed)
    found = rules.complaints(report, implementation, model.references["given"], batch)
    return found | padiff.complaints(framework, implementation, model.checkpoint, batch)


def _is_place(name: str, bug: Bug, *, only_without_probe: bool) -> bool:
    if only_without_probe:
        return name.startswith("api.")
    return name == bug.found_at if bug.in_forward_pass else name.startswith(bug.found_at)


def batch_of(config: ModelConfig, seed: int) -> Batch:
    """Return the inputs on which a bug is tried."""
    return random_batch(config, row_lengths(config), np.random.default_rng([seed, 2]))


def judge(
    framework: str,
    build: Build,
    checkpoint: Checkpoint,
    seed: int = 0,
    dtype: str = "float32",
    checks: Sequence[str] | None = None,
) -> Report:
    """Return the report of a parity run of the models that ``build`` makes, in this process.

    ``checks``: the kinds of check; None: all that the command runs by default.
    """
    return _judge(framework, build, audited_model_of(checkpoint, seed, dtype), seed, dtype, checks)


def _judge(
    framework: str, build: Build, model: AuditedModel, seed: int, dtype: str, checks: Sequence[str] | None
) -> Report:
    config = model.checkpoint.config
    return compare(
        model.weights,
        [batch_of(config, seed)],
        [Subject(framework, "eager", dtype)],
        LocalPool({framework: build}, model.weights, dtype=dtype, mode="eager"),
        checks=selected_checks(checks, config, dtype, "eager"),
        seed=seed,
        digest=model.checkpoint.digest,
        model="mutant",
        inputs="random tokens",
        references=model.references,
    )
