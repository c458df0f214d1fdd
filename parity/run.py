"""The run: for each check ask the reference what is right, ask every framework what it gets, and judge.

One check at a time is in memory, and its files on disk, whatever the number of checks.
"""

from collections.abc import Callable, Mapping, Sequence

from triglot.shared.checkpoint import Checkpoint, check_finite
from triglot.shared.dtypes import FLOATS
from triglot.shared.environment import environment
from triglot.shared.inputs.validation import Batch
from triglot.shared.model.initializers import perturb
from triglot.shared.model.named_values import activations
from triglot.shared.model.protocol import Reference
from triglot.shared.worker import WorkerError

from .checks import Weights, expect, plan, replacements
from .judge import Subject, failure, judge, merge
from .localisation import first_divergence
from .pool import Pool
from .report import Report, Row

Progress = Callable[[int, int, str], None]


def weights_for(checkpoint: Checkpoint, dtype: str, seed: int) -> dict[Weights, Checkpoint]:
    """The weights that the checks run on: those given, and the same with every constant tensor perturbed.

    Both are rounded to ``dtype`` first, so that the truth is the truth of what the frameworks are given. They are
    one object when there is nothing to perturb.

    Raises:
        CheckpointError: a tensor holds NaN or infinity, or a number that ``dtype`` cannot hold.
    """
    check_finite(checkpoint, dtype)
    given = checkpoint
    # What float64 runs on may be stored in fewer bits: it holds them all.
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
    reference: Callable[[Checkpoint], Reference],
    *,
    seed: int,
    digest: str,
    model: str,
    inputs: str,
    progress: Progress | None = None,
) -> Report:
    """Judge every subject in every check. ``model`` and ``inputs`` say in words what was compared.

    The subjects differ in their framework alone; ``weights`` are rounded to their dtype.

    ``digest`` is that of the checkpoint as it was given, before it was rounded.

    ``progress`` is called with the number of checks done, their total, and the name of the next.
    """
    given = weights["given"]
    config = given.config
    references = {id(tensors): reference(tensors) for tensors in weights.values()}
    by_framework = {subject.framework: subject for subject in subjects}
    rows: list[Row] = []
    (dtype,) = {subject.dtype for subject in subjects}
    checks = plan(config, batches, seed, dtype)
    for done, check in enumerate(checks):
        if progress:
            progress(done, len(checks), check.name)
        oracle = references[id(weights[check.weights])]
        replaced = replacements(check, oracle, config, seed, dtype)
        pool.start(check, replaced)
        expectation = expect(check, replaced, oracle, config, dtype)  # while the workers work
        for framework, results in pool.finish():
            subject = by_framework[framework]
            if isinstance(results, WorkerError):
                rows.append(failure(subject, check, results))
            else:
                rows += judge(subject, check, expectation, results, config)
    if progress:
        progress(len(checks), len(checks), "")
    rows = merge(rows)
    order = list(activations(config))
    found = {
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
        first_divergence={framework: place for framework, place in found.items() if place},
    )
