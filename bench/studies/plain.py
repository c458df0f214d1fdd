"""A plain script that times a model as a user would: load it, call it in a loop, take the median.

``python -m triglot.bench.studies.plain ARM CHECKPOINT ROWS LENGTH`` prints a median in ms for each line of its input.
``plain_comparison.py`` compares the benchmark with it. It uses nothing of the benchmark but the arm and its inputs.
"""

import sys
import time
from pathlib import Path

import numpy as np

from triglot.bench.run.arms import ARMS
from triglot.bench.run.batches import batches_of_cell
from triglot.bench.run.cases import Case, Cell
from triglot.shared import checkpoint as checkpoints
from triglot.shared.environment import threads

SECONDS = 0.25
MEDIAN = "median in ms: "  # frameworks print other lines


def main() -> None:
    """Time the arm until the input ends."""
    arm, path, rows, length = sys.argv[1:]
    checkpoint = checkpoints.load(Path(path))
    cell = Cell("plain", "forward", "padded", "float32", "cpu", int(rows), int(length), 1.0, threads())
    batches = batches_of_cell(cell, checkpoint.config, None, 0)
    model = ARMS[arm].import_builder()(checkpoint, Case(arm, cell), batches)
    for _ in range(20):  # warm up
        model.wait(model.call())
    for _ in sys.stdin:
        samples: list[float] = []
        while sum(samples) < 1000 * SECONDS:
            begin = time.perf_counter()
            model.wait(model.call())
            samples.append(1000 * (time.perf_counter() - begin))
        print(f"{MEDIAN}{np.median(samples)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
