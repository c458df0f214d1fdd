"""Prove that each framework learns the toy translation of article 000: ``make convergence``.

``triglot train`` trains the recipe ``translation`` with its default plan in each framework, one after the other: from
the same weights, on the same sentences, with the same dropout masks. The results are written as JSON and as a Markdown
table. The promise is that greedy decoding gets 99% of the tokens right, and over 90% of the sentences, on sentences
that no training run has seen; if not, the exit code is 1.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from triglot.bench.report.tables import markdown_table
from triglot.shared import files
from triglot.shared.environment import environment

TOKENS, SEQUENCES = 0.99, 0.9
COLUMNS = (
    *("framework", "steps", "minutes", "loss, last 500", "accuracy, last 500"),
    *("unseen tokens", "unseen sentences"),
)
_COMMAND = (sys.executable, "-P", "-m", "triglot")


def main(
    results: Annotated[Path, typer.Argument(help="Files to write, without the endings .json and .md.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training run.")] = 20_000,
    framework: Annotated[list[str] | None, typer.Option(help="Train only in this framework; repeatable.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each training run.")] = 1,
) -> None:
    """Train in each framework and write the results."""
    targets = [results.with_name(f"{results.name}{ending}") for ending in (".json", ".md")]
    for target in targets:
        files.check_writable(target)
    names = framework or ["torch", "paddle", "jax"]
    rows = [_train(name, steps, threads) for name in names]
    table = _table(rows)
    content = {"schema": "triglot.convergence/1", "environment": environment(), "threads": threads, "runs": rows}
    for target, text in zip(targets, (json.dumps(content, indent=1), table), strict=True):
        with files.writing(target) as file:
            file.write(f"{text}\n".encode())
    print(table)  # noqa: T201
    kept = all(row["unseen"]["tokens"] >= TOKENS and row["unseen"]["sequences"] > SEQUENCES for row in rows)
    raise typer.Exit(0 if kept else 1)


def _train(framework: str, steps: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        report = Path(folder) / "report.json"
        options = {"--steps": steps, "--framework": framework, "--threads": threads, "--json": report}
        arguments = [str(part) for option in options.items() for part in option]
        begin = time.monotonic()
        subprocess.run(
            [*_COMMAND, "train", "translation", *arguments, "--target", f"{folder}/run.npz"], check=True, cwd=folder
        )
        seconds = time.monotonic() - begin
        summary = json.loads(report.read_text())
    loss, accuracy = summary.pop("loss"), summary.pop("accuracy")
    # Every hundredth step is enough for a plot.
    curve = {"step": list(range(1, steps + 1, 100)), "loss": loss[::100], "accuracy": accuracy[::100]}
    last = {"loss": sum(loss[-500:]) / len(loss[-500:]), "accuracy": sum(accuracy[-500:]) / len(accuracy[-500:])}
    return {**summary, "seconds": round(seconds, 1), "last_500": last, "curve": curve}


def _table(runs: list[dict[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = []
    for run in runs:
        last, unseen = run["last_500"], run["unseen"]
        counts = (f"{run['steps']:,}", f"{run['seconds'] / 60:.1f}", f"{last['loss']:.4f}", f"{last['accuracy']:.2%}")
        rows.append((run["framework"], *counts, f"{unseen['tokens']:.2%}", f"{unseen['sequences']:.1%}"))
    return "\n".join(markdown_table(COLUMNS, rows))


if __name__ == "__main__":
    typer.run(main)
