"""Invariants: changes of a batch that must not change a result of the public methods.

``base``               the results that the others are compared with, judged against the truth; segment and task ids are
                       zero
``other_padding``      other tokens in place of the padding
``alone``              a row of a single token without the others, and without its padding
``other_order``        the rows in the opposite order
``later_targets``      other target tokens after the middle of each row (causality)
``overflowing_row``    a first row whose numbers overflow to infinity and NaN
``no_segments``        segment and task ids left out, where they were zero

A result may differ from the base by two budgets of the base, because both are rounded. An invariant is judged only if
it holds in the reference. With a masking value of -10, for example, padding has an influence by design. The report
lists the invariants that were not judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triglot.parity.budgets import CONFIRMING_RUNS, HOLDING_SHARE, UNCONFIRMED_RUNS
from triglot.parity.checks import judged_tokens, rounded_batch, row_lengths
from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, diverged, judge_value, methods_of
from triglot.parity.output_names import API
from triglot.parity.report import Judgement, Row
from triglot.parity.revealing import Weights, largest, ordinary_ids
from triglot.parity.scopes import scopes_of, worst_share
from triglot.parity.truth import Reference, Truth, distances
from triglot.shared.arrays import Array, Bools
from triglot.shared.inputs import Batch, PairBatch, random_batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import DECODED, named_values

from .findings import Findings
from .trial import Answers, Subjects, judge_each

INVARIANTS = "invariants"
BASE = "base"
SINGLE = 2  # the row of a single token, see ``checks.LENGTHS``


@dataclass(frozen=True)
class Variant:
    """A change of the base batch.

    ``rows``: which row of the base each row has to equal, None: none of them. ``targets``: how many target tokens of
    each row have to, None: all. ``holds_anyway``: the reference cannot run on it, but the invariant must hold.
    """

    name: str
    batch: Batch
    rows: Sequence[int | None]
    weights: Weights = "loud"
    targets: int | None = None
    holds_anyway: bool = False

    def selected(self, name: str, dimensions: int) -> Bools:
        """Return where a named value has to equal the base's: a mask that broadcasts to it."""
        config = self.batch.config
        rows = np.array([row is not None for row in self.rows])
        places = _along(rows, 0, dimensions)
        selected = judged_tokens(name, self.batch, config)
        if selected is not None:
            places = places & selected
        if self.targets is not None and name.startswith((DECODED, "heads.")):
            assert isinstance(self.batch, PairBatch)
            before = np.arange(self.batch.target.shape[1], dtype=np.intp) < self.targets
            places = places & _along(before, 1, dimensions)
        return places

    def of_base(self, value: Array, shape: tuple[int, ...]) -> Array:
        """Return the part of a value of the base that a value of this ``shape`` has to equal."""
        rows = [row or 0 for row in self.rows]
        return value[rows][tuple(slice(size) for size in shape)]


class Base:
    """What the variants of one parity run share: the truth of the base, and what each framework made of the base."""

    def __init__(self, reference: Reference, batch: Batch, dtype: str) -> None:
        self.reference = reference
        self.batch = batch
        self.dtype = dtype
        self.results: dict[str, Results] = {}
        self._truth: Truth | None = None

    @property
    def truth(self) -> Truth:
        """The true values of the base, and their noise."""
        if self._truth is None:
            self._truth = self.reference.truth_of_values(self.batch, {}, UNCONFIRMED_RUNS)
        return self._truth


class InvariantTrial:
    """Whether the results of a variant equal those of the base, which is the first variant."""

    name = INVARIANTS

    def __init__(self, variant: Variant, base: Base, subjects: Subjects, findings: Findings) -> None:
        self._variant = variant
        self._base = base
        self._subjects = subjects
        self._findings = findings

    def job(self) -> Job:
        """See ``Trial.job``."""
        return Job("methods", self._variant.weights, self._variant.batch)

    def judge(self, answers: Answers) -> Iterator[Row]:
        """See ``Trial.judge``."""
        holding = self._holding()
        return judge_each(
            self.name, self._subjects, answers, lambda subject, results: self._judgements(subject, results, holding)
        )

    def _holding(self) -> list[str]:
        """Return the named values for which the invariant holds in the reference. Note the others."""
        truth, variant = self._base.truth, self._variant
        names, holding = list(methods_of(variant.batch.config)), list[str]()
        if variant.holds_anyway:
            scores_overflow = variant.weights == "overflowing" and variant.batch.config.tied_embeddings
            holding = [name for name in names if not (scores_overflow and name.endswith("masked_lm"))]
            self._note(names, holding)
            return holding
        values, named = self._base.reference.trace(variant.batch, {}), named_values(variant.batch.config)
        for name in names:
            value = values[name]
            expected, noise = (variant.of_base(array[name], value.shape) for array in (truth.values, truth.noise))
            places, dtype = variant.selected(name, value.ndim), self._base.dtype
            scopes = scopes_of(named[name], variant.batch.config, dtype)
            share = worst_share(scopes, distances(value, expected), noise, expected, places, dtype)
            if not share.used > HOLDING_SHARE:  # NaN counts as holding, so that an overflow is judged
                holding.append(name)
        self._note(names, holding)
        return holding

    def _of_base(self, subject: Subject, results: Results) -> list[Judgement]:
        """Judge the results that the others are compared with against the truth."""
        config = self._variant.batch.config

        def judge(truth: Truth) -> list[Judgement]:
            return [
                judge_value(self._label(name), results.get(method), truth, name, subject, config)
                for name, method in methods_of(config).items()
            ]

        judgements = judge(self._base.truth)
        for runs in CONFIRMING_RUNS:
            if any(judgement.verdict == "diverged" for judgement in judgements):
                judgements = judge(self._base.truth.confirmed(runs, {}))
        return judgements

    def _note(self, names: Sequence[str], holding: Sequence[str]) -> None:
        self._findings.lacking += [self._label(name) for name in names if name not in holding]

    def _label(self, name: str) -> str:
        """Return the name under which a named value is judged."""
        method = methods_of(self._variant.batch.config)[name]
        return f"{self._variant.name}.{method.removeprefix(f'{API}.')}"

    def _judgements(self, subject: Subject, results: Results, holding: Sequence[str]) -> Iterable[Judgement]:
        variant, config = self._variant, self._variant.batch.config
        if variant.name == BASE:
            self._base.results[subject.framework] = results
            yield from self._of_base(subject, results)
            return
        base, truth = self._base.results.get(subject.framework, {}), self._base.truth
        for name in holding:
            method, label = methods_of(config)[name], self._label(name)
            if method not in results or method not in base:
                yield diverged(label, "the value is missing")
                continue
            shape = results[method].shape
            expected = variant.of_base(base[method], shape)
            if expected.shape != shape:
                yield diverged(label, f"the shape is {shape}, expected at most {expected.shape}")
                continue
            noise = 2 * variant.of_base(truth.noise[name], shape)  # both results have it
            around = Truth({name: expected}, {name: noise}, _none)
            places = variant.selected(name, len(shape))
            yield judge_value(label, results[method], around, name, subject, config, places)


def invariant_trials(
    reference: Reference, subjects: Subjects, findings: Findings, dtype: str, seed: int
) -> list[InvariantTrial]:
    """Return a trial for the base and for each variant that applies to the model. ``reference``: on loud weights."""
    generator = np.random.default_rng([seed, 4])
    batch = rounded_batch(_base(reference.model.config, generator), dtype)
    base = Base(reference, batch, dtype)
    return [
        InvariantTrial(replace(variant, batch=rounded_batch(variant.batch, dtype)), base, subjects, findings)
        for variant in _variants(batch, dtype, generator)
    ]


def _base(config: ModelConfig, generator: np.random.Generator) -> Batch:
    """Return a batch without the overflowing token, and with segments and tasks of 0."""
    batch = random_batch(config, row_lengths(config), generator)
    changes: dict[str, Any] = {}
    for name, array in batch.arrays().items():
        if name in ("segment_ids", "task_ids"):
            changes[name] = np.zeros_like(array)
        if name in ("source", "target") and len(ordinary_ids(config)) == 2:
            overflowing, other = ordinary_ids(config)
            changes[name] = np.where(array == overflowing, other, array).astype(array.dtype)
    return replace(batch, **changes)


def _variants(base: Batch, dtype: str, generator: np.random.Generator) -> Iterator[Variant]:
    config, rows = base.config, range(base.rows)
    yield Variant(BASE, base, rows)
    yield Variant("other_padding", _with_other_padding(base, generator), rows)
    yield Variant("alone", _part(base, [SINGLE]), [SINGLE])
    yield Variant("other_order", _reordered(base, rows[::-1]), rows[::-1])
    if isinstance(base, PairBatch):
        middle = base.target.shape[1] // 2
        target = base.target.copy()
        later = target[:, middle:]
        target[:, middle:] = (
            _other_ids(later, config.target_vocabulary, generator)
            if config.target_vocabulary
            else generator.standard_normal(later.shape)
        )
        yield Variant("later_targets", replace(base, target=target), rows, targets=middle)
    others = [None, *rows[1:]]
    if len(ordinary_ids(config)) == 2:
        ids = {name: getattr(base, name).copy() for name in ("source", "target") if name in base.arrays()}
        for array in ids.values():
            array[0] = ordinary_ids(config)[0]
        yield Variant("overflowing_row", replace(base, **ids), others, "overflowing", holds_anyway=True)
    if not config.source_vocabulary:
        vectors = {name: array.copy() for name, array in base.arrays().items() if name in _VECTORS}
        for array in vectors.values():
            array[0] = largest(dtype)
        yield Variant("overflowing_row", replace(base, **vectors), others, holds_anyway=True)
    if config.segments or config.tasks:
        yield Variant("no_segments", replace(base, segment_ids=None, task_ids=None), rows, holds_anyway=True)


# The arrays of a batch by what their second axis is.
_ALONG_SOURCE = ("source", "valid", "segment_ids", "task_ids", "key", "value")
_ALONG_TARGET = ("target", "target_valid")
_VECTORS = ("source", "target", "query", "key", "value")


def _reordered(batch: Batch, rows: Sequence[int]) -> Batch:
    return replace(batch, **{name: array[list(rows)] for name, array in batch.arrays().items()})


def _part(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return the rows, without the columns that are padding in all of them."""
    part = _reordered(batch, rows)
    sources, targets = (
        int(np.flatnonzero(part.real_tokens().get(axis, np.ones((1, 1))).any(axis=0)).max()) + 1
        for axis in ("source", "target")
    )
    changes: dict[str, Array] = {}
    for name, array in part.arrays().items():
        if name in _ALONG_SOURCE:
            changes[name] = array[:, :sources]
        if name in _ALONG_TARGET:
            changes[name] = array[:, :targets]
        if name in ("allowed", "bias"):
            changes[name] = array[..., :sources]
    return replace(part, **changes)


def _with_other_padding(batch: Batch, generator: np.random.Generator) -> Batch:
    config = batch.config
    vocabularies = {
        "source": config.source_vocabulary,
        "target": config.target_vocabulary,
        "segment_ids": config.segments,
        "task_ids": config.tasks,
    }
    changes: dict[str, Array] = {}
    for name, array in batch.arrays().items():
        real = batch.real_tokens()["target" if name in _ALONG_TARGET else "source"]
        if array.dtype.kind == "f" and name in ("source", "target", "key", "value"):
            drawn = 10 * generator.standard_normal(array.shape)
            changes[name] = np.where(real[:, :, None], array, drawn).astype(array.dtype)
        elif vocabularies.get(name):
            other = _other_ids(array, vocabularies[name], generator)
            changes[name] = np.where(real, array, other).astype(array.dtype)
    return replace(batch, **changes)


def _other_ids(ids: Array, vocabulary: int, generator: np.random.Generator) -> Array:
    """Return an id for each, another one if there is more than one."""
    return (ids + generator.integers(min(1, vocabulary - 1), vocabulary, ids.shape)) % vocabulary


def _along(mask: Bools, axis: int, dimensions: int) -> Bools:
    """Return a mask of one axis such that it broadcasts to a value of so many dimensions."""
    shape = [1] * dimensions
    shape[axis] = len(mask)
    return mask.reshape(shape)


def _none(_: int, __: Results) -> dict[str, Array]:
    return {}
