"""Measure how long commands and the first result of each framework take: ``make startup``.

Each command runs in fresh processes, in turns with the others and with an interpreter that does nothing, so that the
state of the machine affects all of them alike. Python and the frameworks keep what they compile for the next round, as
they do for a user who starts a program again.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

ROUNDS = 5

COMMANDS: Mapping[str, Sequence[str]] = {
    "python -c pass": ("-c", "pass"),
    "import numpy": ("-c", "import numpy"),
    "import triglot": ("-c", "import triglot"),
    "triglot --help": ("-m", "triglot", "--help"),
    "triglot recipes": ("-m", "triglot", "recipes"),
}

# What Triglot itself needs of each framework.
IMPORTS: Mapping[str, str] = {"torch": "torch", "paddle": "paddle", "jax": "jax, flax.nnx"}

# Imports a framework, reads the trained MiniLM and computes the vector of one sentence.
FIRST_VECTOR = "import triglot; triglot.Embedder('minilm', framework='{}').encode(['One sentence.'])"

# The same for a model that PyTorch's compiler has to compile.
FIRST_TRANSLATION = """
import numpy, triglot
model = triglot.build("torch", triglot.initialize("translation"), mode="compiled")
ids = numpy.ones((2, 7), numpy.int64)
model.forward(ids, ids)
"""

# Leaves at once, because a result counts when it is there. The frameworks take up to half a second to clean up.
# The compiler of PyTorch has to clean up, because its own processes would run beside the next command.
LEAVE = "import os; os._exit(0)"


def commands() -> dict[str, Sequence[str]]:
    """Return the arguments of the interpreter for each command, by the name that the table shows."""
    named = dict(COMMANDS)
    for framework, modules in IMPORTS.items():
        named[f"import {modules}"] = ("-c", f"import {modules}; {LEAVE}")
        named[f"first vector, {framework}"] = ("-c", f"{FIRST_VECTOR.format(framework)}; {LEAVE}")
    named["first translation, torch.compile"] = ("-c", FIRST_TRANSLATION)
    return named


def measure(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of each command in each round, from process start to result. The first round does not count.

    ``folder``: where the frameworks keep compiled programs.
    """
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    work = commands()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, arguments in work.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=os.environ | kept)
            seconds[name].append(time.perf_counter() - start)
    return {name: values[1:] for name, values in seconds.items()}


def main() -> None:
    """Print a line for each command."""
    numbers = [Column(header, justify="right") for header in ("minimum", "median", "maximum")]
    table = Table("command", *numbers, title=f"seconds from start to result, {ROUNDS} rounds")
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        measured = measure(ROUNDS, Path(folder))
    for name, values in measured.items():
        table.add_row(name, *(f"{value:.3f}" for value in (min(values), statistics.median(values), max(values))))
    Console().print(table)


if __name__ == "__main__":
    main()
