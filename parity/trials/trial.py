"""What a trial is: a job for every framework, and the judgement of what each returns."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, failure, to_row
from triglot.parity.report import Judgement, Row
from triglot.shared.worker import WorkerError

Answers = Iterable[tuple[str, Results | WorkerError]]  # of each framework
Subjects = Mapping[str, Subject]


class Trial(Protocol):
    """One question to every framework."""

    name: str

    def job(self) -> Job:
        """Return what every framework does."""
        ...

    def judge(self, answers: Answers) -> Iterator[Row]:
        """Yield a row for every judgement of what the frameworks return. They may still be at work."""
        ...


def judge_each(
    name: str, subjects: Subjects, answers: Answers, judge: Callable[[Subject, Results], Iterable[Judgement]]
) -> Iterator[Row]:
    """Yield what ``judge`` says of each framework's results, and a row for each framework that has none."""
    for framework, results in answers:
        subject = subjects[framework]
        if isinstance(results, WorkerError):
            yield failure(subject, name, results)
        else:
            yield from (to_row(subject, name, judgement) for judgement in judge(subject, results))
