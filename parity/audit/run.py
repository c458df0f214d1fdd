"""Plant the bugs of the catalogue, and see what the verdict says of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triglot.parity.audit.bug import Bug
from triglot.parity.audit.catalogue import BUGS
from triglot.parity.judge import Subject
from triglot.parity.pool import LocalPool
from triglot.parity.report import Report, worst
from triglot.parity.run import compare, weights_for
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import random_batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize, perturb

from .mutants import Builder, hidden, planted

LENGTHS = (24, 11, 1, 17)  # of the rows of the given batch


@dataclass(frozen=True)
class Outcome:
    """What the verdict said of one bug in one framework, with the weights and inputs of one seed.

    ``only_without_probe``: the bug was planted only in what the public methods run. ``found_at``: the first divergence,
    and ``check``: the check with the largest error there, ``times_budget``. ``located``: it is the right place, as a
    local divergence.
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


def audit(
    frameworks: Sequence[str],
    names: Sequence[str] = tuple(BUGS),
    *,
    dtype: str = "float32",
    seeds: Sequence[int] = (0,),
    only_without_probe: bool = False,
) -> Iterator[Outcome]:
    """Yield an outcome for every bug in every framework, once for each seed."""
    for framework in frameworks:
        with planted(framework, "attention.py", {}, dtype) as healthy:
            for name in names:
                bug = BUGS[name]
                with planted(framework, bug.file, bug.change(framework), dtype) as mutant:
                    builder = hidden(healthy, mutant) if only_without_probe else mutant
                    for seed in seeds:
                        report = judge(framework, builder, checkpoint_of(bug, seed), seed, dtype)
                        outcome = Outcome(name, framework, dtype, seed, only_without_probe, report.verdict)
                        yield _located(outcome, bug, report)


def checkpoint_of(bug: Bug, seed: int) -> Checkpoint:
    """Return the weights on which a bug is tried. No norm or bias in them is the identity."""
    tensors = random_tensors(bug.config, seed)
    spoilt = {name: tensor.astype(np.float32) for name, tensor in bug.weights.items()}
    return Checkpoint(bug.config, {**tensors, **spoilt})


def random_tensors(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Return random weights in which no norm or bias is the identity."""
    return perturb(initialize(config, seed), seed)


def judge(framework: str, builder: Builder, checkpoint: Checkpoint, seed: int = 0, dtype: str = "float32") -> Report:
    """Return the report of a parity run of the models that ``builder`` builds, in this process."""
    weights = weights_for(checkpoint, dtype, seed)
    config = checkpoint.config
    lengths = [min(length, config.source_max_length) for length in LENGTHS]
    return compare(
        weights,
        [random_batch(config, lengths, np.random.default_rng([seed, 2]))],
        [Subject(framework, "eager", dtype)],
        LocalPool({framework: builder}, weights),
        seed=seed,
        digest=checkpoint.digest,
        model="mutant",
        inputs="random tokens",
    )


def _located(outcome: Outcome, bug: Bug, report: Report) -> Outcome:
    divergence = report.first_divergence.get(outcome.framework)
    if divergence is None:
        return outcome
    row = worst(row for row in report.rows if row.name == divergence.name)
    right = divergence.name.startswith("api.") if outcome.only_without_probe else divergence.name == bug.found_at
    return replace(
        outcome,
        found_at=divergence.name,
        located=right and divergence.kind == "local",
        check=row.check,
        times_budget=row.budget_used,
    )
