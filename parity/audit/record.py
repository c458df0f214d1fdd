"""The record of a long audit: every outcome as a line of JSON, so that an interrupted audit can be resumed."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from triglot.shared.errors import OutputError

from .run import Outcome, Task


class Record:
    """The outcomes of an audit, in the file ``path``, or only in memory if that is None.

    Raises:
        OutputError: the file cannot be read, or is not the record of an audit.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.outcomes: list[Outcome] = []
        self._length: int | None = None  # of the complete lines, in bytes
        if path is None or not path.exists():
            return
        try:
            text = path.read_text(encoding="utf-8")
            *lines, half = text.split("\n")  # a process that was killed may leave half a line
            if half and not half.startswith('{"bug": "'[: len(half)]):
                raise ValueError("its last line is not an outcome")
            self.outcomes = [Outcome(**json.loads(line)) for line in lines]
            self._tried()
            self._length = len(text[: len(text) - len(half)].encode())
        except OSError as error:
            raise OutputError(f"cannot read {path}: {error.strerror}; name another file") from error
        except (ValueError, TypeError) as error:
            raise OutputError(f"{path} is not the record of an audit; name another file, or remove it") from error

    def left(self, work: Sequence[Task]) -> list[Task]:
        """Return the remaining tasks, without the seeds that were tried."""
        tried = self._tried()
        left: list[Task] = []
        for task in work:
            key = task.bug, task.framework, task.dtype, task.only_without_probe
            if seeds := [seed for seed in task.seeds if (*key, seed) not in tried]:
                left.append(replace(task, seeds=seeds))
        return left

    def _tried(self) -> set[tuple[str, str, str, bool, int]]:
        return {(each.bug, each.framework, each.dtype, each.only_without_probe, each.seed) for each in self.outcomes}

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Append outcomes to the file.

        Raises:
            OutputError: the file cannot be written.
        """
        added = list(outcomes)
        self.outcomes += added
        if self._path is None:
            return
        try:
            if self._length is not None:
                os.truncate(self._path, self._length)
                self._length = None
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in added)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror}; name another file") from error
