"""Measure how long commands take to start: ``make startup``.

Each command runs in fresh processes, in turns with the others and with an interpreter that does nothing, so that the
state of the machine affects all of them alike.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

ROUNDS = 11

COMMANDS: Mapping[str, Sequence[str]] = {
    "python -c pass": ("-c", "pass"),
    "import numpy": ("-c", "import numpy"),
    "import triglot": ("-c", "import triglot"),
    "triglot --help": ("-m", "triglot", "--help"),
    "triglot recipes": ("-m", "triglot", "recipes"),
}


def measure(rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the seconds of each command in each round, from process start to end. The first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    return {name: values[1:] for name, values in seconds.items()}


def main() -> None:
    """Print a line for each command."""
    numbers = [Column(header, justify="right") for header in ("minimum", "median", "maximum")]
    table = Table("command", *numbers, title=f"seconds from start to end, {ROUNDS} rounds")
    for name, values in measure().items():
        table.add_row(name, *(f"{value:.3f}" for value in (min(values), statistics.median(values), max(values))))
    Console().print(table)


if __name__ == "__main__":
    main()
