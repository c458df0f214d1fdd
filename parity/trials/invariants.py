"""Invariants: changes of a batch that must not change a result of the public methods.

``base``               the results that the others are compared with, judged against the truth; segment and task ids are
                       zero
``other_padding``      other tokens in place of the padding
``alone``              a row of a single token without the others, and without its padding
``other_order``        the rows in the opposite order
``later_targets``      other target tokens after the middle of each row (causality)
``overflowing_row``    a first row whose numbers overflow to infinity and NaN
``no_segments``        segment and task ids left out, where they were zero

A result may differ from the base by the budget of twice the noise, because both are rounded. An invariant is judged
only if it holds in the reference. With a masking value of -10, for example, padding has an influence by design. The
report lists the invariants that were not judged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triglot.parity.budgets import HOLDING_SHARE, UNCONFIRMED_RUNS
from triglot.parity.checks import judged_tokens, rounded_batch, row_lengths
from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, confirmed, judge_value, methods_of
from triglot.parity.output_names import API
from triglot.parity.report import Judgement, Row
from triglot.parity.revealing import Weights, largest, ordinary_ids
from triglot.parity.scopes import scopes_of, worst_share
from triglot.parity.truth import Reference, Truth, Values, distances
from triglot.shared.arrays import Array, Bools
from triglot.shared.inputs import Batch, PairBatch, random_batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import DECODED, OUTPUT, named_values

from .findings import Findings
from .trial import Answers, Subjects, judge_each

INVARIANTS = "invariants"
BASE = "base"
OVERFLOWING_ROW = "overflowing_row"
SINGLE = 2  # the row of a single token, see ``checks.LENGTHS``


@dataclass(frozen=True)
class Variant:
    """A change of the base batch.

    ``rows``: which row of the base each row has to equal, None: none of them. ``targets``: how many target tokens of
    each row have to, None: all. ``holds_anyway``: the invariant holds by definition.
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

    def of_base(self, name: str, value: Array) -> Array:
        """Return the part of a named value of the base that the value of the variant has to equal: its rows, cut."""
        rows = [row or 0 for row in self.rows]
        lengths = {axis: tokens.shape[1] for axis, tokens in self.batch.real_tokens().items()}
        lengths["position"] = lengths["target" if isinstance(self.batch, PairBatch) and name != OUTPUT else "source"]
        axes = named_values(self.batch.config)[name].axes
        return value[rows][tuple(slice(lengths.get(axis)) for axis in axes)]


class Base:
    """What the variants of one parity run share: the truth of the base, and what each framework made of the base."""

    def __init__(self, references: Mapping[Weights, Reference], batch: Batch, dtype: str) -> None:
        self._references = references
        self.batch = batch
        self.dtype = dtype
        self.results: dict[str, Results] = {}
        self._truth: Truth | None = None

    @property
    def truth(self) -> Truth:
        """The true values of the base, and their noise."""
        if self._truth is None:
            self._truth = self._references["loud"].truth_of_values(self.batch, {}, UNCONFIRMED_RUNS)
        return self._truth

    def trace(self, variant: Variant) -> Values:
        """Return the named values of a variant in the reference: in float64, or, if a row has to overflow, rounded."""
        reference = self._references[variant.weights]
        if variant.name == OVERFLOWING_ROW:
            return reference.rounded_trace(variant.batch, {}, 0, {})
        return reference.trace(variant.batch, {})


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
        if self._variant.name == BASE:
            return judge_each(self.name, self._subjects, answers, self._judge_base)
        values: Values = {} if self._variant.holds_anyway else self._base.trace(self._variant)
        names = [*methods_of(self._variant.batch.config)]
        holding = [name for name in names if self._variant.holds_anyway or self._holds(name, values[name])]
        self._findings.lacking += [self._label(name) for name in names if name not in holding]
        return judge_each(
            self.name, self._subjects, answers, lambda subject, results: self._compare(subject, results, holding)
        )

    def _holds(self, name: str, value: Array) -> bool:
        """Return whether the invariant holds for a named value in the reference, which computes ``value``.

        If a row has to overflow, it must do so alone; otherwise the invariant would prove nothing.
        """
        truth, variant, dtype = self._base.truth, self._variant, self._base.dtype
        if variant.name == OVERFLOWING_ROW:
            reads_the_table = variant.batch.config.tied_embeddings and name.endswith("masked_lm")
            overflows_alone = not np.isfinite(value[0]).all() and bool(np.isfinite(value[1:]).all())
            return overflows_alone and not reads_the_table  # a tied head has other weights than on the base
        expected, noise = (variant.of_base(name, array[name]) for array in (truth.values, truth.noise))
        scopes = scopes_of(named_values(variant.batch.config)[name], variant.batch.config, dtype)
        places = variant.selected(name, value.ndim)
        share = worst_share(scopes, distances(value, expected), noise, expected, places, dtype)
        return not share.used > HOLDING_SHARE  # NaN holds: it is judged, as something that overflowed

    def _judge_base(self, subject: Subject, results: Results) -> list[Judgement]:
        """Judge the results that the others are compared with, against the truth."""
        self._base.results[subject.framework] = results
        config = self._variant.batch.config

        def judge(truth: Truth) -> list[Judgement]:
            return [
                judge_value(
                    self._label(name),
                    results.get(method),
                    truth.values[name],
                    truth.noise[name],
                    name,
                    subject,
                    config,
                )
                for name, method in methods_of(config).items()
            ]

        return confirmed(judge, self._base.truth, judge(self._base.truth))[1]

    def _label(self, name: str) -> str:
        """Return the name under which a named value is judged."""
        method = methods_of(self._variant.batch.config)[name]
        return f"{self._variant.name}.{method.removeprefix(f'{API}.')}"

    def _compare(self, subject: Subject, results: Results, holding: Sequence[str]) -> Iterable[Judgement]:
        """Compare the results with those on the base, where the invariant holds."""
        variant, config = self._variant, self._variant.batch.config
        if subject.framework not in self._base.results:
            return  # the row of the base says why
        base, truth = self._base.results[subject.framework], self._base.truth
        for name in holding:
            method, label = methods_of(config)[name], self._label(name)
            if base.get(method, np.empty(())).shape != truth.values[name].shape:
                continue  # the row of the base says so
            expected = variant.of_base(name, base[method])
            noise = 2 * variant.of_base(name, truth.noise[name])  # both results have it
            places = variant.selected(name, expected.ndim)
            yield judge_value(label, results.get(method), expected, noise, name, subject, config, places)


def invariant_trials(
    references: Mapping[Weights, Reference], subjects: Subjects, findings: Findings, dtype: str, seed: int
) -> list[InvariantTrial]:
    """Return a trial for the base and for each variant of it that is possible."""
    generator = np.random.default_rng([seed, 4])
    batch = rounded_batch(_base(references["loud"].model.config, generator), dtype)
    base = Base(references, batch, dtype)
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
        yield Variant(OVERFLOWING_ROW, replace(base, **ids), others, "overflowing")
    if not config.source_vocabulary:
        vectors = {name: array.copy() for name, array in base.arrays().items() if name in _VECTORS}
        for array in vectors.values():
            array[0] = min(largest(dtype), largest("float32"))  # inputs have to be finite in float32
        yield Variant(OVERFLOWING_ROW, replace(base, **vectors), others)
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
