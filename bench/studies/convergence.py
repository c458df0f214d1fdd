"""Does each framework learn the toy translation of article 000? Run as ``python -m triglot.bench.studies.convergence``.

Trains the recipe ``translation`` in each framework, one after the other, by ``triglot train`` with its default plan:
from the same weights, on the same sentences, dropping out the same numbers. Writes what came of it as JSON and as a
Markdown table. The promise is 99 % of the tokens, and more than 90 % of the sentences whole, by greedy decoding on
sentences that no training has seen; exit code 1 where it is not kept.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from triglot.shared import files
from triglot.shared.environment import environment

TOKENS, SEQUENCES = 0.99, 0.9
_COMMAND = (sys.executable, "-P", "-m", "triglot")


def main(
    results: Annotated[Path, typer.Argument(help="What to write, without its ending: .json and .md are added.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 20_000,
    framework: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each training.")] = 1,
) -> None:
    """Train in each framework and write what came of it."""
    targets = [results.with_name(f"{results.name}{ending}") for ending in (".json", ".md")]
    for target in targets:
        files.check_target(target)
    names = framework or ["torch", "paddle", "jax"]
    rows = [_train(name, steps, threads) for name in names]
    content = {"schema": "triglot.convergence/1", "environment": environment(), "threads": threads, "runs": rows}
    for target, text in zip(targets, (json.dumps(content, indent=1), _table(content)), strict=True):
        with files.writing(target) as file:
            file.write(f"{text}\n".encode())
    print(_table(content))  # noqa: T201
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
        found = json.loads(report.read_text())
    loss, accuracy = found.pop("loss"), found.pop("accuracy")
    # Every hundredth step is enough to draw the curve by.
    curve = {"step": list(range(1, steps + 1, 100)), "loss": loss[::100], "accuracy": accuracy[::100]}
    last = {"loss": sum(loss[-500:]) / len(loss[-500:]), "accuracy": sum(accuracy[-500:]) / len(accuracy[-500:])}
    return {**found, "seconds": round(seconds, 1), "last_500": last, "curve": curve}


def _table(content: dict[str, Any]) -> str:
    lines = [
        "| framework | steps | minutes | loss, last 500 | tokens foreseen, last 500 | unseen: tokens | unseen: whole |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in content["runs"]:
        last, unseen = row["last_500"], row["unseen"]
        lines.append(
            f"| {row['framework']} | {row['steps']:,} | {row['seconds'] / 60:.1f} | {last['loss']:.4f} | "
            f"{last['accuracy']:.2%} | {unseen['tokens']:.2%} | {unseen['sequences']:.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
