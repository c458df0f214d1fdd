"""The parity run: a sequence of trials, each of which asks every framework for values and judges them.

Only a few trials at a time are in memory, and on disk, however many there are.
"""

import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from triglot import impls
from triglot.shared.arrays import FLOATS
from triglot.shared.checkpoint import Checkpoint, check_finite
from triglot.shared.choices import DTYPES
from triglot.shared.environment import cores, environment
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs import Batch, check_batch, random_batches
from triglot.shared.model.initializers import perturb
from triglot.shared.model.schema import named_values

from .audit.catalogue import blind
from .checks import KINDS, LOCAL
from .jobs import Build
from .judge import Subject, first_divergence, merge
from .originals import Original
from .originals.comparison import RunningOriginal, wide, with_originals
from .originals.recorded import Example
from .pool import WORKER, LocalPool, Pool, WorkerPool
from .report import Report, Row
from .revealing import Weights, revealing_checkpoints
from .trials.findings import Findings
from .trials.plan import plan_trials, selected_checks, unchecked
from .trials.trial import Trial
from .truth import Reference

AHEAD = 3  # trials that the frameworks may be ahead of the reference
BATCHES, BATCH_SIZE = 2, 4  # of the inputs that a run takes if none are given: sentences, or random tokens

Progress = Callable[[int, int, str], None]  # trials that are done, trials in total, name of the next one


def check(
    checkpoint: Checkpoint,
    frameworks: Sequence[str] | None,
    *,
    batches: Sequence[Batch] | None,
    checks: Sequence[str] | None,
    isolate: bool,
    pythons: Mapping[str, str | Path],
    device: str,
    dtype: str,
    mode: str,
    seed: int,
    threads: int | None,
    time_limit: float,
    model: str,
    inputs: str | None,
    original: Original | None,
    example: Example | None,
    progress: Progress | None,
) -> Report:
    """Judge every framework in every check, and an original. The arguments are those of ``triglot.check``.

    ``original``: the model that was ported. ``example``: recorded inputs and outputs of it.
    """
    impls.check_choice("dtype", dtype, DTYPES)
    impls.check_choice("device", device, impls.DEVICES)
    impls.check_choice("mode", mode, impls.MODES)
    interpreters = {framework: _interpreter(framework, path) for framework, path in pythons.items()}
    kinds = selected_checks(checks, checkpoint.config, dtype, mode)
    selected = _select(frameworks, interpreters, isolate=isolate)
    if batches is None:
        batches = random_batches(checkpoint.config, BATCHES, BATCH_SIZE, seed)
        inputs = f"{BATCHES} batches of {BATCH_SIZE} rows of random tokens"
    batches = [check_batch(checkpoint.config, batch) for batch in batches]
    weights = weights_for(checkpoint, dtype, seed)
    settings = {"device": device, "dtype": dtype, "mode": mode}
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        if isolate:
            pool = WorkerPool(
                {name: [interpreters.get(name, sys.executable), *WORKER] for name in selected},
                weights,
                Path(folder),
                settings=settings,
                threads=threads or cores(),
                time_limit=time_limit,
            )
        else:
            pool = LocalPool({name: _builder(name, device) for name in selected}, weights, dtype=dtype, mode=mode)
        # The reference works while the frameworks do, and threads that wait for a busy core would slow all of them.
        with threadpool_limits(max(1, cores() // (1 + len(selected))), "blas"), closing(pool), ExitStack() as stack:
            running = None
            if original is not None:
                running = RunningOriginal(original, batches, wide(dtype), Path(folder), threads or cores(), time_limit)
                stack.callback(running.close)
            report = compare(
                weights,
                batches,
                [Subject(framework, mode, dtype) for framework in selected],
                pool,
                checks=kinds,
                seed=seed,
                digest=checkpoint.digest,
                model=model,
                inputs=inputs or f"{len(batches)} batches",
                progress=progress,
            )
            return with_originals(report, checkpoint, running, example)


def weights_for(checkpoint: Checkpoint, dtype: str, seed: int) -> dict[Weights, Checkpoint]:
    """Return the weights that the checks run on: those given, perturbed and revealing (see ``checks.Check``).

    All are rounded to ``dtype``, so that the truth is computed from the numbers that the frameworks get. Given and
    perturbed weights are the same object if there is nothing to perturb.

    Raises:
        CheckpointError: a tensor holds NaN or infinity, or a number that ``dtype`` cannot hold.
    """
    given = rounded_weights(checkpoint, dtype)
    perturbed = perturb(given.tensors, seed)
    unchanged = all(perturbed[name] is tensor for name, tensor in given.tensors.items())
    return {
        "given": given,
        "perturbed": given if unchanged else Checkpoint(checkpoint.config, perturbed),
        **revealing_checkpoints(checkpoint.config, dtype, seed),
    }


def rounded_weights(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Return the checkpoint with its tensors rounded to ``dtype``; the same object if they need no rounding.

    Raises:
        CheckpointError: a tensor holds NaN or infinity, or a number that ``dtype`` cannot hold.
    """
    check_finite(checkpoint, dtype)
    # A wider dtype holds every number exactly, so the frameworks convert it themselves.
    if dtype == "float64" or all(np.can_cast(tensor.dtype, FLOATS[dtype]) for tensor in checkpoint.tensors.values()):
        return checkpoint
    rounded = {name: tensor.astype(FLOATS[dtype]) for name, tensor in checkpoint.tensors.items()}
    return Checkpoint(checkpoint.config, rounded)


def compare(
    weights: Mapping[Weights, Checkpoint],
    batches: Sequence[Batch],
    subjects: Sequence[Subject],
    pool: Pool,
    *,
    checks: Sequence[str],
    seed: int,
    digest: str,
    model: str,
    inputs: str,
    references: Mapping[Weights, Reference] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Judge every subject in every check, on ``weights`` that are rounded to the dtype that all subjects share.

    ``digest`` is the digest of the checkpoint before it was rounded. ``model`` and ``inputs`` describe in words what
    was compared. ``references``: one for all weights, or None to build them.
    """
    config = weights["given"].config
    (dtype,) = {subject.dtype for subject in subjects}
    if references is None:
        by_checkpoint = {id(checkpoint): Reference(checkpoint, dtype) for checkpoint in weights.values()}
        references = {name: by_checkpoint[id(checkpoint)] for name, checkpoint in weights.items()}
    findings = Findings()
    by_name = {subject.framework: subject for subject in subjects}
    trials = plan_trials(checks, references, weights, batches, by_name, findings, seed)
    rows: list[Row] = []
    started: deque[Trial] = deque()
    coming = iter(trials)
    for done, trial in enumerate(trials):
        if progress:
            progress(done, len(trials), trial.name)
        for later in islice(coming, AHEAD + 1 - len(started)):
            pool.start(later.job())
            started.append(later)
        rows += started.popleft().judge(pool.finish())
        if pool.is_empty():
            break  # no framework is left to judge, and computing the truth of the other trials is slow
    if progress:
        progress(len(trials), len(trials), "")
    rows = merge(row for row in rows if KINDS.get(row.check, row.check) in checks or _always_counts(row))
    order, frameworks = list(named_values(config)), [subject.framework for subject in subjects]
    divergences = {
        framework: first_divergence([row for row in rows if row.framework == framework], order)
        for framework in frameworks
    }
    unselected = unchecked(checks, config)
    return Report(
        model=model,
        inputs=inputs,
        config=config.to_dict(),
        weights_digest=digest,
        environment={**environment(), "workers": dict(pool.environments)},
        frameworks=tuple(frameworks),
        rows=tuple(rows),
        amplification=findings.amplification,
        unchecked=unselected,
        lacking=tuple(findings.lacking),
        blind=blind(dtype, config, {*checks, *unselected}),
        first_divergence={framework: divergence for framework, divergence in divergences.items() if divergence},
    )


def _always_counts(row: Row) -> bool:
    """Return whether a row counts although its kind was not selected: a failure, or a step that explains an error."""
    return row.verdict == "error" or (row.check == LOCAL and row.verdict == "diverged")


def _builder(framework: str, device: str) -> Build:
    return lambda checkpoint, dtype, mode: impls.build(framework, checkpoint, device=device, dtype=dtype, mode=mode)


def _select(frameworks: Sequence[str] | None, interpreters: Mapping[str, str], *, isolate: bool) -> tuple[str, ...]:
    """Return the frameworks to judge, each once: those asked for, or every one that is available."""
    if frameworks is not None and not isinstance(frameworks, list | tuple):
        raise FrameworkError(f"frameworks is {frameworks!r}; expected a list of names")
    if frameworks is not None and not frameworks:
        raise FrameworkError("frameworks is empty; name one, or pass None for every installed one")
    available = [name for name in impls.FRAMEWORKS if name in (*impls.installed(), *interpreters)]
    selected = tuple(dict.fromkeys(available if frameworks is None else frameworks))
    if not selected:
        raise FrameworkError("no framework is installed; install triglot[torch], triglot[paddle] or triglot[jax]")
    for framework in selected:
        impls.check_choice("framework", framework, tuple(impls.FRAMEWORKS))
        if framework not in available:
            raise FrameworkError(f"framework {framework!r} is not installed; install triglot[{framework}]")
    if unused := sorted(set(interpreters) - set(selected)):
        raise FrameworkError(
            f"pythons names {', '.join(unused)}, which is not compared; add it to frameworks, or leave it out"
        )
    if interpreters and not isolate:
        raise FrameworkError(
            "pythons was given, but isolate is False; pass isolate=True to run a framework in its own process"
        )
    return selected


def _interpreter(framework: str, path: str | Path) -> str:
    impls.check_choice("framework", framework, tuple(impls.FRAMEWORKS))
    interpreter = shutil.which(path)
    if interpreter is None:
        raise FrameworkError(f"there is no interpreter {path}; give the path of a Python that has Triglot installed")
    return interpreter
