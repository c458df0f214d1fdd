"""One process per framework: one that crashes, hangs or cannot even be imported is a result, and the others go on.

The worker is ``python -m triglot.parity.worker``. It takes one JSON object a line on its standard input and answers
each with one line on its standard output; arrays travel in files. When its input ends, it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from .environment import thread_settings
from .errors import FrameworkError, TriglotError


class WorkerError(Exception):
    """A framework gave no result; the message is the reason. ``fatal``: it will not give any other either."""

    def __init__(self, reason: str, *, fatal: bool) -> None:
        super().__init__(reason)
        self.fatal = fatal

    @classmethod
    def of(cls, error: Exception, *, fatal: bool) -> WorkerError:
        """What the framework raised, in one line."""
        reason = " ".join(str(error).split())
        return cls(reason if isinstance(error, TriglotError) else f"{type(error).__name__}: {reason}", fatal=fatal)


class Worker:
    """A worker process, and the requests to it. Leaves no process behind when closed."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        threads: int,
        time_limit: float,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._time_limit = time_limit
        self._log = log
        environment = {**os.environ, **thread_settings(threads), **variables}
        environment["TMPDIR"] = str(log.parent)  # what a framework leaves there goes with it
        with log.open("wb") as errors:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,  # its children too can be killed, and Ctrl-C reaches the harness alone
                )
            except OSError as error:
                raise FrameworkError(
                    f"cannot start {command[0]}: {error.strerror}; give a Python interpreter"
                ) from error
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, request: Mapping[str, Any]) -> None:
        """Ask for something; ``receive`` waits for the answer until the time limit has passed from now on."""
        self._deadline = time.monotonic() + self._time_limit
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone; receive says how

    def receive(self) -> dict[str, Any]:
        """Wait until the worker has done what was asked; what it says about it.

        Raises:
            WorkerError: it failed, died, or took longer than the time limit; if that is fatal, it is closed.
        """
        try:
            line = self._answers.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            self.close()
            raise WorkerError(
                f"no answer within {self._time_limit:g} s; raise the time limit, or see why it hangs", fatal=True
            ) from None
        if not line:
            self.close()
            raise WorkerError(f"{self._cause_of_death()}{self._last_words()}", fatal=True)
        try:
            parsed: Any = json.loads(line)
            if not isinstance(parsed, dict):
                raise ValueError("it is no object")
            answer = cast("dict[str, Any]", parsed)
        except ValueError:
            self.close()
            printed = line.decode(errors="replace").strip()
            raise WorkerError(f"printed {printed!r} in place of an answer", fatal=True) from None
        if "error" in answer:
            error = WorkerError(str(answer["error"]), fatal=bool(answer["fatal"]))
            if error.fatal:
                self.close()
            raise error
        return answer

    def close(self) -> None:
        """End the process and its children."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._process.wait()
        self._answers.put(b"")

    def _cause_of_death(self) -> str:
        code = self._process.returncode
        if code < 0:
            name = signal.Signals(-code).name
            return f"died by signal {name}" + (", as when memory runs out" if name == "SIGKILL" else "")
        return f"ended with exit code {code}"

    def _last_words(self) -> str:
        if self._process.returncode == -signal.SIGKILL:
            return ""  # who is killed so cannot say why; the last line was about something else
        lines = self._log.read_text(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()]
        if words and "No module named 'triglot'" in words[-1]:
            return ": its interpreter has no Triglot; install it there"
        return f": {words[-1]}" if words else ""
