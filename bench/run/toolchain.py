"""What PyTorch's compiler finds out once on a machine: which instructions it has, and its own headers, compiled.

That belongs to the installation, as Python's bytecode does, and is no part of the cold start of a model: each arm that
compiles would pay 16 seconds for it, since each has caches of its own. The program that is compiled to find it out,
``python -m triglot.bench.run.toolchain``, has nothing in common with a model.
"""

import importlib
import operator
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from triglot.shared.environment import cores, thread_settings

COMMAND = (sys.executable, "-P", "-m", "triglot.bench.run.toolchain")


def compiling_into(folder: Path) -> dict[str, str]:
    """The settings by which what is compiled goes into ``folder``; to find another arm's would shorten a cold start."""
    return {
        "TMPDIR": str(folder),  # where PyTorch has its headers, whatever it is told
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


class Toolchain:
    """Finds it out when it is first asked for; with the end of its context it is gone."""

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._found: TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Toolchain":
        return self

    def __exit__(self, *_: object) -> None:
        if self._found is not None:
            self._found.cleanup()
            self._found = None

    def copy_to(self, folder: Path) -> None:
        """Put what was found out into the folder of a worker, which is empty: all of it, or nothing.

        With nothing the worker's compiler finds it out itself; half of it, it would take for the whole.

        Raises:
            OSError: there is no room.
        """
        if self._found is None:
            self._found = TemporaryDirectory(prefix="triglot-", ignore_cleanup_errors=True)
            if not _succeeds(Path(self._found.name), self._time_limit):
                self._found.cleanup()
                Path(self._found.name).mkdir()
        # A lock under two names would make workers wait for each other.
        locks = shutil.ignore_patterns("*.lock")
        shutil.copytree(self._found.name, folder, ignore=locks, copy_function=_link, dirs_exist_ok=True)


def _succeeds(folder: Path, time_limit: float) -> bool:
    """Whether the program could be compiled into ``folder``. Leaves no process behind."""
    surroundings = {**os.environ, **thread_settings(cores()), **compiling_into(folder)}
    process = subprocess.Popen(
        COMMAND,
        env=surroundings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(time_limit) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # compilers that it started too
        process.wait()


def _link(source: str, target: str) -> None:
    """The headers are 150 MB: the same file under another name will do, where a file may have two."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def main() -> None:
    """Compile the least program there is."""
    torch: Any = importlib.import_module("torch")
    torch.compile(operator.neg)(torch.ones(8))


if __name__ == "__main__":
    main()
