"""Measure how much faster decoding is with a key-value cache: ``make generation``.

Each framework decodes 64 sources with the recipe ``translation``, compiled, in two ways that take turns: with a
key-value cache, and without, as in article 000, which reads the whole target again for each new token. No sentence ends
early, so both ways take all 49 steps. The exit code is 1 unless the cache makes decoding at least twice as fast in
every framework, with the same ids.
"""

import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from triglot import impls
from triglot.shared import files
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import environment, limit_threads
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.training.translation import TranslationTask

BATCH, LENGTH, ROUNDS, FASTER = 64, 50, 9, 2.0


def endless() -> Checkpoint:
    """Return the recipe with random weights whose bias bans the end id and the pad id."""
    config = recipe("translation")
    tensors = dict(initialize(config))
    bias = tensors["heads.logits.bias"].copy()
    bias[[config.special_ids[1], config.special_ids[2]]] = -1e4
    return Checkpoint(config, {**tensors, "heads.logits.bias": bias})


def measure(framework: str, rounds: int) -> dict[str, Any]:
    """Return the seconds of both ways in each round, and whether the ids are the same."""
    checkpoint = endless()
    model: Any = impls.build(framework, checkpoint)
    if hasattr(model.backend.generator, "compile"):  # JAX always compiles
        model.backend.generator.compile()
    sources, _ = TranslationTask.for_model(checkpoint.config).pairs(0, BATCH)
    ids = {cached: model.generate(sources, LENGTH, cached=cached) for cached in (True, False)}
    assert (ids[True] != checkpoint.config.pad_id).all(), "a sentence ended early"
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for cached, durations in seconds.items():
            start = time.perf_counter()
            model.generate(sources, LENGTH, cached=cached)
            durations.append(time.perf_counter() - start)
    ratios = [recomputed / cached for recomputed, cached in zip(seconds[False], seconds[True], strict=True)]
    return {
        "framework": framework,
        "kept_s": seconds[True],
        "anew_s": seconds[False],
        "times_as_fast": statistics.median(ratios),
        "least": min(ratios),
        "same_ids": bool(np.array_equal(ids[True], ids[False])),
    }


def main(
    framework: Annotated[list[str] | None, typer.Option(help="Measure only this framework; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = ROUNDS,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one per core.")] = None,
    results: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Measure each framework in its own process, and print a line for each."""
    limit_threads(threads)  # of the processes that follow
    if results is not None:
        files.check_writable(results)
    runs: list[dict[str, Any]] = []
    for name in framework or impls.FRAMEWORKS:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            runs.append(process.submit(measure, name, rounds).result())
    if results is not None:
        content = {"schema": "triglot.generation/1", "environment": environment(), "batch": BATCH, "length": LENGTH}
        with files.writing(results) as file:
            file.write(json.dumps({**content, "runs": runs}, indent=1).encode() + b"\n")
    headers = ("cached, ms", "recomputed, ms", "times as fast", "least", "same ids")
    table = Table("framework", *(Column(header, justify="right") for header in headers))
    table.title = f"{BATCH} sentences of {LENGTH} tokens, greedy, compiled, {rounds} rounds"
    for row in runs:
        cached, recomputed = (1000 * statistics.median(row[key]) for key in ("kept_s", "anew_s"))
        numbers = (f"{cached:.1f}", f"{recomputed:.1f}", f"{row['times_as_fast']:.1f}", f"{row['least']:.1f}")
        table.add_row(row["framework"], *numbers, "yes" if row["same_ids"] else "no")
    Console().print(table)
    raise typer.Exit(0 if all(row["same_ids"] and row["times_as_fast"] >= FASTER for row in runs) else 1)


if __name__ == "__main__":
    typer.run(main)
