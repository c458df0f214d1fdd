"""The parity run: for each check, compute the truth, ask every framework for its values, and judge them.

Only one check at a time is in memory, and on disk, however many checks there are.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from triglot import impls
from triglot.shared.arrays import FLOATS
from triglot.shared.checkpoint import Checkpoint, check_finite
from triglot.shared.choices import DTYPES
from triglot.shared.environment import cores, environment
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs import Batch, check_batch, random_batches
from triglot.shared.model.initializers import perturb
from triglot.shared.model.schema import named_values
from triglot.shared.worker import WorkerError

from .checks import Weights, plan
from .judge import Subject, failure, first_divergence, judge_check, merge
from .pool import WORKER, LocalPool, Pool, WorkerPool
from .report import Report, Row
from .truth import Reference

BATCHES, BATCH_SIZE = 4, 8  # of the random tokens that a run takes if no batches are given

Progress = Callable[[int, int, str], None]  # checks that are done, checks in total, name of the next check


def check(
    checkpoint: Checkpoint,
    frameworks: Sequence[str] | None,
    *,
    batches: Sequence[Batch] | None,
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
    progress: Progress | None,
) -> Report:
    """Judge every framework in every check. The arguments are those of ``triglot.check``."""
    impls.check_choice("dtype", dtype, DTYPES)
    impls.check_choice("device", device, impls.DEVICES)
    impls.check_choice("mode", mode, impls.MODES)
    interpreters = {framework: _interpreter(framework, path) for framework, path in pythons.items()}
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
            pool = LocalPool({name: partial(impls.build, name, **settings) for name in selected}, weights)
        try:
            return compare(
                weights,
                batches,
                [Subject(framework, mode, dtype) for framework in selected],
                pool,
                seed=seed,
                digest=checkpoint.digest,
                model=model,
                inputs=inputs or f"{len(batches)} batches",
                progress=progress,
            )
        finally:
            pool.close()


def weights_for(checkpoint: Checkpoint, dtype: str, seed: int) -> dict[Weights, Checkpoint]:
    """Return the weights that the checks run on: those given, and the same with every constant tensor perturbed.

    Both are rounded to ``dtype``, so that the truth is computed from the numbers that the frameworks get. They are the
    same object if there is nothing to perturb.

    Raises:
        CheckpointError: a tensor holds NaN or infinity, or a number that ``dtype`` cannot hold.
    """
    check_finite(checkpoint, dtype)
    given = checkpoint
    # Float64 holds every number of the narrower dtypes exactly.
    if dtype != "float64" and any(tensor.dtype != FLOATS[dtype] for tensor in checkpoint.tensors.values()):
        rounded = {name: tensor.astype(FLOATS[dtype]) for name, tensor in checkpoint.tensors.items()}
        given = Checkpoint(checkpoint.config, rounded)
    perturbed = perturb(given.tensors, seed)
    if all(perturbed[name] is tensor for name, tensor in given.tensors.items()):
        return {"given": given, "perturbed": given}
    return {"given": given, "perturbed": Checkpoint(checkpoint.config, perturbed)}


def compare(
    weights: Mapping[Weights, Checkpoint],
    batches: Sequence[Batch],
    subjects: Sequence[Subject],
    pool: Pool,
    *,
    seed: int,
    digest: str,
    model: str,
    inputs: str,
    progress: Progress | None = None,
) -> Report:
    """Judge every subject in every check, on ``weights`` that are rounded to the dtype that all subjects share.

    ``digest`` is the digest of the checkpoint before it was rounded. ``model`` and ``inputs`` describe in words what
    was compared.
    """
    config = weights["given"].config
    (dtype,) = {subject.dtype for subject in subjects}
    references = {id(checkpoint): Reference(checkpoint, dtype) for checkpoint in weights.values()}
    by_framework = {subject.framework: subject for subject in subjects}
    rows: list[Row] = []
    checks = plan(config, batches, seed, dtype)
    for done, check in enumerate(checks):
        if progress:
            progress(done, len(checks), check.name)
        reference = references[id(weights[check.weights])]
        replaced = reference.replacements(check, seed)
        pool.start(check, replaced)
        truth = reference.truth_of_check(check, replaced)  # while the workers work
        for framework, results in pool.finish():
            subject = by_framework[framework]
            if isinstance(results, WorkerError):
                rows.append(failure(subject, check, results))
            else:
                rows += judge_check(subject, check, truth, results, config)
    if progress:
        progress(len(checks), len(checks), "")
    rows = merge(rows)
    order = list(named_values(config))
    divergences = {
        framework: first_divergence([row for row in rows if row.framework == framework], order)
        for framework in by_framework
    }
    return Report(
        model=model,
        inputs=inputs,
        config=config.to_dict(),
        weights_digest=digest,
        environment={**environment(), "workers": dict(pool.environments)},
        frameworks=tuple(by_framework),
        rows=tuple(rows),
        first_divergence={framework: divergence for framework, divergence in divergences.items() if divergence},
    )


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
        raise FrameworkError(f"an interpreter was given for {', '.join(unused)}, which is not compared; leave it out")
    if interpreters and not isolate:
        raise FrameworkError("an interpreter needs a process of its own, but isolate is False; isolate the frameworks")
    return selected


def _interpreter(framework: str, path: str | Path) -> str:
    impls.check_choice("framework", framework, tuple(impls.FRAMEWORKS))
    interpreter = shutil.which(path)
    if interpreter is None:
        raise FrameworkError(f"there is no interpreter {path}; give the path of a Python that has Triglot installed")
    return interpreter
