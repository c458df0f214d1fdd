"""Worker processes: a framework that crashes, hangs or cannot be imported is a result, and the others continue.

The harness and the benchmark start workers (``Worker``), and a worker answers requests (``serve``). The wire format is
one JSON object per line, requests on standard input and answers on standard output:

    {"kind": "check", "checkpoint": "...", ...}   ->   {...}, or {"error": "why", "fatal": true}

Arrays travel in files. When its input ends, a worker ends, whatever it is busy with.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any, cast

from .environment import SHARED_GPU, SLEEPING_THREADS, thread_settings
from .errors import FrameworkError, TriglotError

IMPLEMENTATIONS = Path(__file__).parents[1] / "impls"

Message = dict[str, Any]


class WorkerError(Exception):
    """A worker gave no result; the message says why. ``fatal``: it will not give any other result either."""

    def __init__(self, reason: str, *, fatal: bool) -> None:
        super().__init__(reason)
        self.fatal = fatal

    @classmethod
    def of(cls, error: Exception, *, fatal: bool) -> WorkerError:
        """Return what a framework raised as a reason in one line, with the innermost line of our code."""
        reason = " ".join(str(error).split())
        if not isinstance(error, TriglotError):
            kind = type(error).__name__
            reason = f"{kind}: {reason}" if reason else kind
            frames = [
                frame for frame in extract_tb(error.__traceback__) if IMPLEMENTATIONS in Path(frame.filename).parents
            ]
            if frames:
                place = Path(frames[-1].filename).relative_to(IMPLEMENTATIONS.parent)
                reason = f"{reason} ({place}, line {frames[-1].lineno}, in {frames[-1].name})"
        return cls(reason, fatal=fatal)


def serve(handlers: Mapping[str, Callable[[Message], Message]]) -> None:
    """Answer requests until the input ends, each with the handler of its kind. Run inside a worker process.

    A handler may raise ``WorkerError``. Any other exception is answered as a fatal one.
    """
    # Frameworks print to standard output. The answers keep it for themselves, and everything else goes to the log.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.Queue[Message] = queue.Queue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        request = requests.get()
        try:
            answer = handlers[request["kind"]](request)
        except WorkerError as error:
            answer = {"error": str(error), "fatal": error.fatal}
        except Exception as error:
            answer = {"error": str(WorkerError.of(error, fatal=True)), "fatal": True}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _read_requests(requests: queue.Queue[Message]) -> None:
    """Read in a thread, so that the worker ends as soon as its parent is gone."""
    # Unbuffered: a buffer has a lock, and Python crashes at exit if a waiting thread holds it.
    with open(0, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            requests.put(json.loads(line))
    os._exit(0)


class Worker:
    """A worker process and the requests to it. When it is closed, no process is left behind.

    ``variables`` are set in its environment. By default, its idle threads sleep: the workers of the harness run at the
    same time, and their times are not reported.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        threads: int,
        time_limit: float,
        variables: Mapping[str, str] = SLEEPING_THREADS,
    ) -> None:
        self._time_limit = time_limit
        self._log = log
        environment = {**os.environ, **SHARED_GPU, **thread_settings(threads), **variables}
        environment["TMPDIR"] = str(log.parent)  # what a framework leaves there is removed with the folder
        with log.open("wb") as errors:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,  # so that its children can be killed too, and Ctrl-C reaches only us
                )
            except OSError as error:
                raise FrameworkError(
                    f"cannot start {command[0]}: {error.strerror}; give a Python interpreter"
                ) from error
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, kind: str, content: Mapping[str, Any]) -> None:
        """Send a request. A worker answers its requests in turn.

        ``receive`` waits for an answer until the time limit has passed, from now on or from the answer before.
        """
        self._deadline = time.monotonic() + self._time_limit
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the worker is gone; receive says why
            self._process.stdin.write(json.dumps({"kind": kind, **content}).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> Message:
        """Wait for the answer to the oldest request that has none, and return it.

        Raises:
            WorkerError: the worker failed, died, or exceeded the time limit. If that is fatal, it is closed.
        """
        try:
            line = self._answers.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            self.close()
            raise WorkerError(
                f"no answer within {self._time_limit:g} s; raise the time limit, or find out why it hangs", fatal=True
            ) from None
        self._deadline = time.monotonic() + self._time_limit
        if not line:
            self.close()
            raise WorkerError(f"{self._cause_of_death()}{self._last_line_of_log()}", fatal=True)
        try:
            parsed: Any = json.loads(line)
            if not isinstance(parsed, dict):
                raise ValueError("not a JSON object")
        except ValueError:
            self.close()
            printed = line.decode(errors="replace").strip()
            raise WorkerError(f"printed {printed!r} instead of an answer", fatal=True) from None
        answer = cast("Message", parsed)
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
            return f"died by signal {name}" + (", which often means out of memory" if name == "SIGKILL" else "")
        return f"ended with exit code {code}"

    def _last_line_of_log(self) -> str:
        if self._process.returncode == -signal.SIGKILL:
            return ""  # a killed process cannot say why, so its last line is about something else
        lines = [line.strip() for line in self._log.read_text(errors="replace").split("\n") if line.strip()]
        if lines and "No module named 'triglot'" in lines[-1]:
            return ": its interpreter has no Triglot; install it there"
        return f": {lines[-1]}" if lines else ""
