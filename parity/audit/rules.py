"""Simpler rules that people use to compare two implementations. The audit counts the bugs that they catch.

Each looks at the final outputs only, and compares them with the truth, which is better than what such a comparison
usually has: another framework with its own rounding errors.
"""

from collections.abc import Callable, Mapping

import numpy as np

from triglot.impls.model import Model
from triglot.parity.report import Report
from triglot.parity.truth import Reference
from triglot.shared.arrays import Array
from triglot.shared.inputs import Batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import ATTENDED, DECODED, OUTPUT

OWN_BUDGET = "final outputs within our budget"

Rule = Callable[[Array, Array], bool]


def _cosine(value: Array, truth: Array) -> float:
    value, truth = value.ravel(), truth.ravel()
    with np.errstate(over="ignore", invalid="ignore"):  # then the cosine is NaN, which no rule accepts
        return float(value @ truth / max(np.linalg.norm(value) * np.linalg.norm(truth), np.finfo(np.float64).tiny))


# What a rule accepts. NaN is never accepted.
RULES: Mapping[str, Rule] = {
    "allclose, 1e-5 relative and absolute": lambda value, truth: np.allclose(value, truth, rtol=1e-5, atol=1e-5),
    "allclose, 1e-3 relative and absolute": lambda value, truth: np.allclose(value, truth, rtol=1e-3, atol=1e-3),
    "mean difference below 1e-6": lambda value, truth: bool(np.abs(value - truth).mean() < 1e-6),
    "cosine above 0.9999": lambda value, truth: _cosine(value, truth) > 0.9999,
}
NAMES = (OWN_BUDGET, *RULES)


def complaints(report: Report, model: Model, reference: Reference, batch: Batch) -> dict[str, bool]:
    """Return which rules complain about a model on a batch. ``report`` is its parity run on the same batch."""
    names = final_outputs(reference.model.config)
    rows = [row for row in report.rows if row.check == "end_to_end" and row.name in names]
    found = dict.fromkeys(RULES, False)
    try:
        values = model.trace(batch, {})
    except Exception:
        return dict.fromkeys(NAMES, True)  # a crash counts as a complaint of every rule
    truth = reference.trace(batch, {})
    for name in names:
        value = values[name].astype(np.float64)
        for rule, accepts in RULES.items():
            found[rule] |= not np.isfinite(value).all() or not accepts(value, truth[name])
    return {OWN_BUDGET: any(row.verdict == "diverged" for row in rows), **found}


def final_outputs(config: ModelConfig) -> list[str]:
    """Return the names of what leaves a model."""
    if config.kind == "attention":
        return [ATTENDED]
    heads = [f"heads.{head}" for head in config.heads_on_top]
    return heads or [DECODED] if config.kind == "encoder_decoder" else [OUTPUT, *heads]
