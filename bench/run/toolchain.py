"""What PyTorch's compiler finds out once on a machine: the processor's instructions, and its own headers, compiled.

That belongs to the installation, like Python's bytecode, and is not part of a model's cold start. Without this module,
each arm that compiles would spend 16 seconds on it, because each has a cache of its own. The program that is compiled
to find it out has nothing in common with a model.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from triglot.shared.environment import cores, thread_settings

COMMAND = (sys.executable, "-P", "-c", "import operator, torch; torch.compile(operator.neg)(torch.ones(8))")


def cache_variables(folder: Path) -> dict[str, str]:
    """Return variables that put all compiler caches into ``folder``. A shared cache would shorten cold starts."""
    return {
        "TMPDIR": str(folder),  # PyTorch keeps its headers there, whatever else is set
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


class Toolchain:
    """The prepared caches: made when they are first needed, and removed at the end of the context."""

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._caches: TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Toolchain":
        return self

    def __exit__(self, *_: object) -> None:
        if self._caches is not None:
            self._caches.cleanup()
            self._caches = None

    def copy_to(self, folder: Path) -> None:
        """Put the caches into the empty folder of a worker: all of them, or nothing if they could not be made.

        A compiler takes half-made caches for complete ones.

        Raises:
            OSError: the disk is full.
        """
        if self._caches is None:
            self._caches = TemporaryDirectory(prefix="triglot-", ignore_cleanup_errors=True)
            if not _compile_into(Path(self._caches.name), self._time_limit):
                self._caches.cleanup()
                Path(self._caches.name).mkdir()
        # Workers that share a lock file would wait for each other.
        locks = shutil.ignore_patterns("*.lock")
        shutil.copytree(self._caches.name, folder, ignore=locks, copy_function=_link, dirs_exist_ok=True)


def _compile_into(folder: Path, time_limit: float) -> bool:
    """Compile the program, and return whether that worked. Leave no process behind."""
    process = subprocess.Popen(
        COMMAND,
        env={**os.environ, **thread_settings(cores()), **cache_variables(folder)},
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
            os.killpg(process.pid, signal.SIGKILL)  # includes compilers that it started
        process.wait()


def _link(source: str, target: str) -> None:
    """Link a file if the file system allows it, because the headers are 150 MB; otherwise copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
