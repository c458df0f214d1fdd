"""Measure opening a checkpoint, building a model from it, and reading one tensor: ``make checkpoints``.

Each measurement has a fresh process, and ``/proc`` shows what it mapped and read, so this needs Linux. Two files of 0.4
and 6 GB are written to a temporary folder (``TMPDIR``) and removed again.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from triglot.impls import build
from triglot.impls.model import Model
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint, check_finite, load, save
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

ROUNDS = 11

Measured = dict[str, float]  # name and value: seconds, bytes or a count

# Seconds to open each file. To a user, that is immediate.
BASE_LIMIT, LARGE_LIMIT = 0.050, 0.100

_BASE = recipe("bert-base")
# 118 layers of BERT-large, 6 GB in 1,895 tensors: more layers than any real model, so that many headers are read.
_LARGE = replace(_BASE, hidden_size=1024, layers=118, heads=16, feed_forward_size=4096)
_ONE = "encoder.layers.1.feed_forward.inner.weight"


def repeated(config: ModelConfig) -> dict[str, Array]:
    """Return tensors that are views of the same random numbers, so that they share their memory."""
    shapes = {name: parameter.shape for name, parameter in schema.parameters(config).items()}
    numbers = np.random.default_rng(0).standard_normal(max(map(math.prod, shapes.values())), np.float32)
    return {name: numbers[: math.prod(shape)].reshape(shape) for name, shape in shapes.items()}


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of a call, and how many seconds it takes."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def opening(path: Path) -> Measured:
    """Return the seconds that ``load`` takes."""
    return {"seconds": _timed(load, path)[1]}


def opening_from_disk(path: Path) -> Measured:
    """Return the same for a file that is not in the page cache, and the bytes read from the disk."""
    _forget(path)
    before = _process("io", "read_bytes")
    return {**opening(path), "read": _process("io", "read_bytes") - before}


def sharing(path: Path) -> Measured:
    """Return how long it takes to build and check a PyTorch model, and where its parameters are in memory."""
    tiny = recipe("bert-base-tiny")
    build("torch", Checkpoint(tiny, initialize(tiny)))  # imports PyTorch
    before = _process("status", "RssAnon")
    from triglot.impls.pytorch.backend import Backend  # noqa: PLC0415 (only this measurement needs PyTorch)

    checkpoint = load(path, "open")
    model, build_s = _timed(lambda: Model(Backend(checkpoint, "cpu", "float32", "eager")))
    _, check_s = _timed(check_finite, checkpoint, "float32")  # as ``build`` does first
    parameters: list[Any] = list(model.backend.transformer.parameters())
    ranges = _mapped(path)
    ends = [(parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes) for parameter in parameters]
    return {
        "build": build_s,
        "check": check_s,
        "parameters": len(parameters),
        "inside": sum(any(start <= first and last <= end for start, end in ranges) for first, last in ends),
        "bytes": sum(parameter.nbytes for parameter in parameters),
        "anonymous": _process("status", "RssAnon") - before,
    }


def verifying(path: Path) -> Measured:
    """Return the seconds that comparing all tensors with their checksums takes."""
    return {"seconds": _timed(load, path, "full")[1]}


def one_tensor(path: Path) -> Measured:
    """Return what reading one tensor of a large file takes: seconds, bytes from the disk, resident memory."""
    _forget(path)
    checkpoint = load(path)
    before = {name: _process("status", name) for name in ("RssAnon", "RssFile")}
    calls, disk = _process("io", "rchar"), _process("io", "read_bytes")
    tensor, seconds = _timed(checkpoint.tensors.__getitem__, _ONE)  # compares it with its checksum
    grown = sum(_process("status", name) - value for name, value in before.items())
    return {
        "seconds": seconds,
        "bytes": tensor.nbytes,
        "resident": grown,
        "disk": _process("io", "read_bytes") - disk,
        "calls": _process("io", "rchar") - calls,
    }


def measure(measurement: Callable[[Path], Measured], path: Path, rounds: int = ROUNDS) -> list[Measured]:
    """Repeat a measurement in fresh processes. The first round does not count."""
    results: list[Measured] = []
    for _ in range(rounds + 1):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            results.append(process.submit(measurement, path).result())
    return results[1:]


def main() -> None:
    """Write the files, measure, and print a line for each measurement."""
    numbers = [Column(header, justify="right") for header in ("median", "best", "limit")]
    table = Table("measurement", *numbers, title=f"up to {ROUNDS} fresh processes each")
    with tempfile.TemporaryDirectory() as folder:
        _measure_base(Path(folder) / "base.npz", table)
        _measure_large(Path(folder) / "large.npz", table)
    Console().print(table)


def _measure_base(path: Path, table: Table) -> None:
    save(Checkpoint(_BASE, initialize(_BASE)), path)
    size = f"bert-base, {path.stat().st_size / 1e6:.0f} MB"
    table.add_row(f"{size}: open", *_milliseconds(measure(opening, path)), f"{BASE_LIMIT * 1e3:.0f} ms")
    table.add_row("open, not in memory yet", *_milliseconds(measure(opening_from_disk, path)))
    table.add_row("verify all checksums", *_milliseconds(measure(verifying, path, 3)))
    shared = measure(sharing, path, 3)
    table.add_row("build the PyTorch model on the mapping", *_milliseconds(shared, "build"))
    table.add_row("look for NaN and infinity", *_milliseconds(shared, "check"))
    last = shared[-1]
    table.add_row("parameters inside the mapping", f"{last['inside']} of {last['parameters']}", "", "all")
    table.add_row("other memory", f"{last['anonymous'] / 1e6:.1f} of {last['bytes'] / 1e6:.0f} MB")
    table.add_section()


def _measure_large(path: Path, table: Table) -> None:
    save(Checkpoint(_LARGE, repeated(_LARGE)), path)
    size = f"{len(schema.parameters(_LARGE)):,} tensors, {path.stat().st_size / 1e9:.1f} GB"
    table.add_row(f"{size}: open", *_milliseconds(measure(opening, path)), f"{LARGE_LIMIT * 1e3:.0f} ms")
    cold = measure(opening_from_disk, path)
    table.add_row("open, not in memory yet", *_milliseconds(cold))
    table.add_row("  read from the disk", f"{cold[-1]['read'] / 1e6:.1f} MB")
    one = measure(one_tensor, path, 3)
    table.add_row(f"one tensor of {one[-1]['bytes'] / 1e6:.1f} MB", *_milliseconds(one))
    table.add_row("  resident memory grew by", f"{one[-1]['resident'] / 1e6:.1f} MB")
    table.add_row("  read from the disk", f"{one[-1]['disk'] / 1e6:.1f} MB")
    table.add_row("  read by system calls", f"{one[-1]['calls'] / 1e6:.1f} MB")


def _milliseconds(results: list[Measured], name: str = "seconds") -> tuple[str, str]:
    """Return the median, and the best value, which other work on the machine affects least."""
    values = [result[name] * 1e3 for result in results]
    return f"{statistics.median(values):.1f} ms", f"{min(values):.1f} ms"


def _forget(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _process(file: str, field: str) -> int:
    """Return a number of bytes from a file about this process in ``/proc``."""
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * (1024 if line.endswith("kB") else 1)


def _mapped(path: Path) -> list[tuple[int, int]]:
    """Return the address ranges at which a file is mapped. Adjacent ranges with different permissions are merged."""
    ranges: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f" {path}"):
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, end))
    return ranges


if __name__ == "__main__":
    main()
