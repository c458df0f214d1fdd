"""Compare an original with its port: judge its results against the truth of the port, like those of a framework.

An original has no probe, so only its results are judged, within the same budgets.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from triglot.parity.checks import judged_tokens
from triglot.parity.jobs import Results
from triglot.parity.judge import Subject, confirmed, diverged, failure, judge_value, merge, methods_of, to_row
from triglot.parity.output_names import API
from triglot.parity.report import ORIGINAL, Divergence, Report, Row
from triglot.parity.truth import Reference, Truth
from triglot.shared.arrays import HALVES, Bools
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.inputs import Batch, PairBatch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import OUTPUT, named_values
from triglot.shared.worker import Worker, WorkerError

from . import Original
from .recorded import Example
from .weights import compare_weights

WORKER = ("-P", "-m", "triglot.parity.originals.worker")
NO_TOKENS = "none of its tokens can be compared; use inputs without padding at the left"


class RunningOriginal:
    """An original that runs in its own process, until it is closed."""

    def __init__(
        self, original: Original, batches: Sequence[Batch], dtype: str, folder: Path, threads: int, time_limit: float
    ) -> None:
        self.original, self.dtype = original, dtype
        self.batches = [as_tokenized(batch) for batch in batches]
        self._results = [folder / f"original_{number}.npz" for number in range(len(batches))]
        paths = [folder / f"original_batch_{number}.npz" for number in range(len(batches))]
        for path, batch in zip(paths, self.batches, strict=True):
            npz.write(path, batch.arrays())
        self._worker = Worker([sys.executable, *WORKER], folder / "original.log", threads, time_limit)
        request = {
            "path": str(original.path.resolve()),
            "dialect": original.dialect,
            "config": original.config.to_dict(),
            "dtype": dtype,
            "batches": [str(path) for path in paths],
            "results": [str(path) for path in self._results],
        }
        self._worker.send("run", request)

    def judge(self, checkpoint: Checkpoint) -> list[Row]:
        """Wait for the results and judge them against the truth of the port, ``checkpoint``."""
        name = self.original.library.name
        try:
            self._worker.receive()
        except WorkerError as error:
            return [failure(Subject(name, "eager", self.dtype), ORIGINAL, error)]
        results = [npz.read(path) for path in self._results]
        # The file of a model may decide its number format.
        dtypes = {value.dtype.name for values in results for value in values.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else self.dtype
        subject, reference = Subject(name, "eager", dtype), Reference(checkpoint, dtype)
        rows = [
            row
            for batch, values in zip(self.batches, results, strict=True)
            for row in judge_original(subject, reference, batch, values)
        ]
        return merge(rows)

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def with_originals(
    report: Report, checkpoint: Checkpoint, running: RunningOriginal | None, example: Example | None
) -> Report:
    """Return the report with the rows of an original and of an example."""
    rows: list[Row] = []
    descriptions: list[str] = []
    if running is not None:
        rows = running.judge(checkpoint)
        uncompared = not_compared(rows, checkpoint.config)
        descriptions.append(f"compared with the original: {running.original.description}{uncompared}")
        differs = any(row.verdict == "diverged" and row.name and row.reason != NO_TOKENS for row in rows)
        if words := compare_weights(running.original, checkpoint, results_differ=differs):
            descriptions.append(words)
    if example is not None:
        recorded = judge_example(example, checkpoint)
        rows += recorded
        uncompared = not_compared(recorded, checkpoint.config, example.ignored)
        descriptions.append(f"compared with recorded outputs of the original: {example.path}{uncompared}")
    divergences = {
        row.framework: Divergence(row.name, "inherited", ORIGINAL)
        for row in reversed(rows)
        if row.verdict == "diverged"
    }
    return replace(
        report,
        frameworks=(*report.frameworks, *dict.fromkeys(row.framework for row in rows)),
        rows=(*report.rows, *rows),
        first_divergence={**report.first_divergence, **divergences},
        originals=(*descriptions,),
    )


def wide(dtype: str) -> str:
    """Return the dtype in which an original runs if the frameworks run in ``dtype``: at least float32.

    Its files may be more precise than 16 bits, and the port is the same in every format.
    """
    return "float32" if dtype in HALVES else dtype


def judge_example(example: Example, checkpoint: Checkpoint) -> list[Row]:
    """Judge recorded outputs against the truth of ``checkpoint``; see ``judge_original``."""
    subject = Subject("recorded", "eager", example.dtype)
    return judge_original(subject, Reference(checkpoint, example.dtype), example.batch, example.outputs)


def judge_original(subject: Subject, reference: Reference, batch: Batch, results: Results) -> list[Row]:
    """Return a row for each result of the original that the port has too."""
    config = batch.config
    names = {method: name for name, method in methods_of(config).items() if method in results}
    if not names:
        reason = (
            f"the original returns {', '.join(results) or 'nothing'}, but the port returns "
            f"{', '.join(methods_of(config).values())}, so nothing can be compared; pass the original of this model "
            "(against=, or --against on the command line)"
        )
        return [to_row(subject, ORIGINAL, diverged("", reason))]

    selected = {name: _judged(name, batch, config) for name in names.values()}

    def judge(truth: Truth) -> list[Row]:
        judgements = [
            judge_value(
                method,
                results[method],
                truth.values[name],
                truth.noise[name],
                name,
                subject,
                config,
                selected[name],
                narrow=False,
            )
            if (places := selected[name]) is None or places.any()
            else diverged(method, NO_TOKENS)
            for method, name in names.items()
        ]
        return [to_row(subject, ORIGINAL, judgement) for judgement in judgements]

    truth = reference.truth_of_values(batch, {})
    return confirmed(judge, truth, judge(truth))[1]


def not_compared(rows: Sequence[Row], config: ModelConfig, ignored: Sequence[str] = ()) -> str:
    """Return the end of a description, which lists the results that were not compared; empty if there are none.

    ``rows`` judge the results that both have. ``ignored`` names outputs that the port does not have.
    """
    compared, methods = {row.name for row in rows}, dict.fromkeys(methods_of(config).values())
    if not compared & {*methods}:
        return ""  # a row already says that nothing could be compared
    names = [method.removeprefix(f"{API}.") for method in methods if method not in compared]
    names += [f"{name} (not in the port)" for name in ignored]
    return f"; not compared: {', '.join(names)}" if names else ""


def as_tokenized(batch: Batch) -> Batch:
    """Return the batch as a tokenizer could have made it: only padding has the pad id.

    transformers and some models take every token except the pad id for a real one.
    """
    pad = batch.config.pad_id
    real = {"source": batch.valid, **_targets(batch)}
    changes: dict[str, object] = {}
    for name, valid in real.items():
        ids = batch.arrays()[name]
        if pad is not None and ids.dtype.kind == "i":
            other = pad + 1 if pad == 0 else pad - 1
            changes[name] = np.where(valid, np.where(ids == pad, other, ids), pad).astype(ids.dtype)
    return replace(batch, **changes)


def _targets(batch: Batch) -> Mapping[str, Bools]:
    arrays = batch.arrays()
    return {"target": arrays["target_valid"]} if "target" in arrays else {}


def _judged(name: str, batch: Batch, config: ModelConfig) -> Bools | None:
    """Return where a result is judged, as a mask that broadcasts to it: at real tokens.

    A head with one result for each row is judged only where the first token is real.
    """
    axes = named_values(config)[name].axes
    if "position" in axes:
        valid = batch.target_valid if isinstance(batch, PairBatch) and name != OUTPUT else batch.valid
        return valid.reshape(*valid.shape, *[1] * (len(axes) - 2))
    of_first_token = name != "heads.sentence_embedding" or config.sentence_pooling == "cls"
    if name.startswith("heads.") and of_first_token:
        return batch.valid[:, :1]
    return judged_tokens(name, batch, config)
