"""Decoding: every id has to be one that rounding allows, with a key-value cache, without one, and in a batch of one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from triglot.parity.generation import GenerationTruth
from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, diverged
from triglot.parity.output_names import ALONE, CACHED, IDS, RECOMPUTED
from triglot.parity.report import Judgement, Row
from triglot.parity.revealing import Weights
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import NotFiniteError
from triglot.shared.inputs import PairBatch

from .trial import Answers, Subjects, judge_each

GENERATION = "generation"


class GenerationTrial:
    """The ids that every framework generates for the sources of a batch, as many as its targets have."""

    name = GENERATION

    def __init__(self, subjects: Subjects, weights: Weights, checkpoint: Checkpoint, batch: PairBatch) -> None:
        self._subjects = subjects
        self._weights: Weights = weights
        self._checkpoint = checkpoint
        self._batch = batch

    def job(self) -> Job:
        """See ``Trial.job``."""
        return Job("generation", self._weights, self._batch)

    def judge(self, answers: Answers) -> Iterator[Row]:
        """See ``Trial.judge``."""
        (dtype,) = {subject.dtype for subject in self._subjects.values()}
        truth, problem = None, ""
        try:
            truth = GenerationTruth(self._checkpoint, self._batch, dtype, self._batch.target.shape[1])
        except NotFiniteError as error:
            problem = str(error)

        def judgements(_: Subject, results: Results) -> Iterable[Judgement]:
            for name in (CACHED, RECOMPUTED, ALONE):
                if name not in results:
                    yield diverged(name, "the value is missing")
                elif truth is None:
                    yield Judgement(name=name, verdict="skipped", reason=problem)
                else:
                    judgement = truth.judge({IDS: results[name]})
                    yield replace(judgement, name=judgement.name.replace(IDS, name, 1))

        return judge_each(self.name, self._subjects, answers, judgements)
