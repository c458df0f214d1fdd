"""What do kept keys and values save? Run as ``make generation``, or ``python -m triglot.bench.studies.generation``.

Decodes 64 sources with the recipe ``translation``, compiled, once as article 000 does it, which reads the whole target
of 50 tokens anew for each new token, and once with the keys and values of earlier tokens kept. Both ways take turns in
one process per framework, after a first call of each that compiles. The weights are so that no sentence ends early:
both ways make all 49 steps. The promise is that keeping is five times as fast, with the same ids; exit code 1 where it
is not kept.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from triglot import impls
from triglot.shared import files
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import environment, limit_threads
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.training.translation import TranslationTask

BATCH, LENGTH, ROUNDS, FASTER = 64, 50, 9, 5.0


def endless() -> Checkpoint:
    """The recipe with random weights that never say the end, nor padding: both have a bias that no score makes up."""
    config = recipe("translation")
    tensors = dict(initialize(config))
    bias = tensors["heads.logits.bias"].copy()
    bias[[config.special_ids[1], config.special_ids[2]]] = -1e4
    return Checkpoint(config, {**tensors, "heads.logits.bias": bias})


def measure(framework: str, rounds: int) -> dict[str, Any]:
    """Seconds of each way in each round, and whether the ids are the same."""
    checkpoint = endless()
    model: Any = impls.build(framework, checkpoint)
    if hasattr(model.backend.generator, "compile"):  # JAX compiles always
        model.backend.generator.compile()
    sources, _ = TranslationTask.for_model(checkpoint.config).pairs(0, BATCH)
    ids = {cached: model.generate(sources, LENGTH, cached=cached) for cached in (True, False)}
    assert (ids[True] != checkpoint.config.pad_id).all(), "a sentence ended early"
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for cached, taken in seconds.items():
            start = time.perf_counter()
            model.generate(sources, LENGTH, cached=cached)
            taken.append(time.perf_counter() - start)
    ratios = [anew / kept for anew, kept in zip(seconds[False], seconds[True], strict=True)]
    return {
        "framework": framework,
        "kept_s": seconds[True],
        "anew_s": seconds[False],
        "times_as_fast": statistics.median(ratios),
        "least": min(ratios),
        "same_ids": bool(np.array_equal(ids[True], ids[False])),
    }


def main(
    framework: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = ROUNDS,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one per core.")] = None,
    results: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Measure each framework in a process of its own, and print a line for each."""
    limit_threads(threads)
    if worker:
        assert framework
        print(json.dumps(measure(framework[0], rounds)))  # noqa: T201
        return
    if results is not None:
        files.check_target(results)
    found: list[dict[str, Any]] = []
    for name in framework or impls.FRAMEWORKS:
        command = [sys.executable, "-P", "-m", __spec__.name, "--worker", "--framework", name, "--rounds", str(rounds)]
        command += ["--threads", str(threads)] if threads else []
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{name} gave no result:\n{result.stderr}")
        found.append(json.loads(result.stdout.splitlines()[-1]))
    if results is not None:
        content = {"schema": "triglot.generation/1", "environment": environment(), "batch": BATCH, "length": LENGTH}
        with files.writing(results) as file:
            file.write(json.dumps({**content, "runs": found}, indent=1).encode() + b"\n")
    table = Table("framework", title=f"{BATCH} sentences of {LENGTH} tokens, greedy, compiled, {rounds} rounds")
    for column in ("kept, ms", "anew, ms", "times as fast", "least", "same ids"):
        table.add_column(column, justify="right")
    for row in found:
        kept, anew = (1000 * statistics.median(row[key]) for key in ("kept_s", "anew_s"))
        numbers = (f"{kept:.1f}", f"{anew:.1f}", f"{row['times_as_fast']:.1f}", f"{row['least']:.1f}")
        table.add_row(row["framework"], *numbers, "yes" if row["same_ids"] else "no")
    Console().print(table)
    raise typer.Exit(0 if all(row["same_ids"] and row["times_as_fast"] >= FASTER for row in found) else 1)


if __name__ == "__main__":
    typer.run(main)
