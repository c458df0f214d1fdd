"""Measure how long ``triglot port`` takes and how much memory it needs: ``make porting``.

Each measurement is a fresh process of the command. Time is compared with what any program has to do to move the same
bytes safely: copy the file, sync it to the disk, and hash it. Both are measured in turns, in the same run. Memory is
the anonymous memory of the process (``RssAnon`` in ``/proc``, so this needs Linux): pages of mapped files are not
counted, because the system can drop them at any time. 20 GB are written to a temporary folder (``TMPDIR``).
"""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from triglot.bench.studies.checkpoints import repeated
from triglot.shared import porting
from triglot.shared.checkpoint import Checkpoint, parse_size, save
from triglot.shared.environment import environment
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

ROUNDS = 7
TIME_LIMIT = 2.5  # times copying, syncing and hashing the same file
MEMORY_LIMIT = 150e6  # bytes above those of ``triglot inspect`` of a tiny model
SHARD_SIZE = "500MB"

_BASE = recipe("bert-base")
# 97 layers of BERT-large: 5 GB.
_LARGE = replace(_BASE, hidden_size=1024, layers=97, heads=16, feed_forward_size=4096)
_SAMPLING_S = 0.002


@dataclass(frozen=True)
class Times:
    """Seconds on the clock, and seconds of a processor, which other work on the machine affects less."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Measured:
    """The times of a port and of copying in the same rounds, and the largest anonymous memory of the port."""

    name: str
    bytes: int
    times: Sequence[Times]
    copy_times: Sequence[Times]
    memory: int

    def best(self) -> tuple[Times, Times]:
        """Return the best times of the port and of copying."""
        best_port, best_copy = (
            Times(min(entry.wall for entry in times), min(entry.processor for entry in times))
            for times in (self.times, self.copy_times)
        )
        return best_port, best_copy


def run(*arguments: str | Path) -> tuple[Times, int]:
    """Run a command of Triglot; return its times and its largest anonymous memory."""
    start, before, peak = time.perf_counter(), _processor(resource.RUSAGE_CHILDREN), 0
    process = subprocess.Popen([sys.executable, "-m", "triglot", *arguments, "--quiet"])
    while process.poll() is None:
        peak = max(peak, anonymous_memory(process.pid))
        time.sleep(_SAMPLING_S)
    times = Times(time.perf_counter() - start, _processor(resource.RUSAGE_CHILDREN) - before)
    if process.returncode:
        raise SystemExit(f"triglot {' '.join(map(str, arguments))} failed")
    return times, peak


def copy(source: Path, target: Path) -> Times:
    """Copy, sync and hash the files of a folder, or a file; return the times."""
    sources = sorted(source.iterdir()) if source.is_dir() else [source]
    start, before = time.perf_counter(), _processor(resource.RUSAGE_SELF)
    for number, path in enumerate(sources):
        copied = target.with_suffix(f".{number}")
        shutil.copyfile(path, copied)
        with copied.open("rb") as file:
            os.fsync(file.fileno())
            hashlib.file_digest(file, "sha256")
    times = Times(time.perf_counter() - start, _processor(resource.RUSAGE_SELF) - before)
    for number in range(len(sources)):
        target.with_suffix(f".{number}").unlink()
    return times


def measure(name: str, source: Path, target: Path, options: Sequence[str], rounds: int) -> Measured:
    """Port ``source`` to ``target`` and copy it, in turns. The last target stays."""
    ports: list[Times] = []
    copies: list[Times] = []
    memory = 0
    for _ in range(rounds):
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        copies.append(copy(source, target.with_name("copy")))
        times, peak = run("port", source, target, *options)
        ports.append(times)
        memory = max(memory, peak)
    size = sum(path.stat().st_size for path in (source.iterdir() if source.is_dir() else [source]))
    return Measured(name, size, ports, copies, memory)


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the result.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Ports of the small model in each direction.")] = ROUNDS,
) -> None:
    """Write the models, measure, print a table, and write the result as JSON if a file is named."""
    with tempfile.TemporaryDirectory() as folder:
        idle = max(run("inspect", "bert-base-tiny")[1] for _ in range(3))
        results = [*_measure_base(Path(folder), rounds), *_measure_large(Path(folder))]
    _print(results, idle)
    if json_file:
        content = {
            "date": time.strftime("%Y-%m-%d"),
            "idle_memory": idle,
            "limits": {"time": TIME_LIMIT, "memory": MEMORY_LIMIT},
            "results": [asdict(result) for result in results],
            "environment": environment(),
        }
        json_file.write_text(json.dumps(content, indent=1) + "\n")


def _measure_base(folder: Path, rounds: int) -> list[Measured]:
    porting.write(Checkpoint(_BASE, initialize(_BASE)), folder / "base", "huggingface")
    weights, neutral = folder / "base" / "model.safetensors", folder / "base.npz"
    out, back = ("--config", "bert-base"), ("--target-dialect", "huggingface")
    return [
        measure("safetensors to neutral", weights, neutral, out, rounds),
        measure("neutral to safetensors", neutral, folder / "back", back, rounds),
    ]


def _measure_large(folder: Path) -> list[Measured]:
    _save_large(_LARGE, folder / "large")
    shards = ("--shard-size", SHARD_SIZE)
    hugging = folder / "large-huggingface"
    return [
        measure("sharded neutral to sharded safetensors", folder / "large", hugging, (*shards, *_HUGGING_FACE), 1),
        measure("sharded safetensors to sharded neutral", hugging, folder / "large-again", shards, 1),
    ]


_HUGGING_FACE = ("--target-dialect", "huggingface")


def _save_large(config: ModelConfig, folder: Path) -> None:
    save(Checkpoint(config, repeated(config)), folder, parse_size(SHARD_SIZE))


def _print(results: Sequence[Measured], idle: int) -> None:
    numbers = ("size", "port", "copy", "ratio", "limit", "processor", "copy", "ratio", "memory above idle", "limit")
    table = Table("best of all rounds", *(Column(name, justify="right") for name in numbers))
    for result in results:
        best, copied = result.best()
        table.add_row(
            result.name,
            f"{result.bytes / 1e6:,.0f} MB",
            *(f"{best.wall:.2f} s", f"{copied.wall:.2f} s", f"{best.wall / copied.wall:.2f}", f"{TIME_LIMIT}"),
            *(f"{best.processor:.2f} s", f"{copied.processor:.2f} s", f"{best.processor / copied.processor:.2f}"),
            f"{(result.memory - idle) / 1e6:.0f} MB",
            f"{MEMORY_LIMIT / 1e6:.0f} MB",
        )
    console = Console(width=160)
    console.print(table)
    console.print(f"idle: {idle / 1e6:.0f} MB of anonymous memory")


def _processor(who: int) -> float:
    """Return the processor seconds of this process or of its finished children."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def anonymous_memory(process: int) -> int:
    """Return the anonymous memory of a process in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:")), 0)


if __name__ == "__main__":
    typer.run(main)
