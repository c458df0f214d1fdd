"""The record of a long audit: every outcome as a line of JSON, so that an interrupted audit can be resumed."""

import json
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
        if path is None or not path.exists():
            return
        try:
            text = path.read_text(encoding="utf-8")
            complete = text[: text.rfind("\n") + 1]  # a process that was killed may leave half a line
            self.outcomes = [Outcome(**json.loads(line)) for line in complete.splitlines()]
            if complete != text:
                path.write_text(complete, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot read {path}: {error.strerror}; name another file") from error
        except (ValueError, TypeError) as error:
            raise OutputError(f"{path} is not the record of an audit; name another file, or remove it") from error

    def left(self, work: Sequence[Task]) -> list[Task]:
        """Return the remaining tasks, without the seeds that were tried."""
        tried = {(each.bug, each.framework, each.dtype, each.only_without_probe, each.seed) for each in self.outcomes}
        left: list[Task] = []
        for task in work:
            key = task.bug, task.framework, task.dtype, task.only_without_probe
            if seeds := [seed for seed in task.seeds if (*key, seed) not in tried]:
                left.append(replace(task, seeds=seeds))
        return left

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
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in added)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror}; name another file") from error
