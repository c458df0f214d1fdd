"""The figures of ``docs/parity.md`` are those of the newest audit in ``bench/results``."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from triglot.impls import FRAMEWORKS
from triglot.shared.arrays import HALVES
from triglot.shared.choices import DTYPES

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"torch": "PyTorch", "paddle": "PaddlePaddle", "jax": "JAX"}
TEXT = " ".join((ROOT / "docs/parity.md").read_text().split())


@cache
def results() -> dict[tuple[str, str], Any]:
    """Return the newest result for every framework and number format; PaddlePaddle has no 16 bits on a CPU."""
    newest = max((ROOT / "bench/results").glob("*-audit"))
    assert f"`bench/results/{newest.name}`" in TEXT
    tried = [(name, dtype) for dtype in DTYPES for name in FRAMEWORKS if name != "paddle" or dtype not in HALVES]
    return {(name, dtype): json.loads((newest / f"{name}-{dtype}.json").read_text()) for name, dtype in tried}


def test_the_bugs_are_those_of_the_catalogue_and_were_caught_as_the_document_says():
    found = [results()[name, "float32"]["bugs"] for name in FRAMEWORKS]
    for bugs in found:
        assert all(bug["tries"] == bug["caught"] == 20 for bug in bugs)
        in_methods = [bug for bug in bugs if bug["tries_in_methods"]]
        caught = sum(bug["caught_in_methods"] == bug["tries_in_methods"] for bug in in_methods)
        assert f"holds {len(bugs)} bugs" in TEXT
        assert f"There, {caught} of {len(in_methods)} are caught" in TEXT
    tries, located = (sum(bug[field] for bugs in found for bug in bugs) for field in ("tries", "located"))
    assert f"in {located:,} of {tries:,} tries" in TEXT


def test_the_table_of_simpler_rules():
    by_framework = {name: {rule["rule"]: rule for rule in results()[name, "float32"]["rules"]} for name in FRAMEWORKS}
    for rule in by_framework["torch"]:
        found = [rules.get(rule) for rules in by_framework.values()]
        caught = [f"{line['bugs_caught']} of {line['bugs']}" if line else "-" for line in found]
        alarms, runs = (sum(line[field] for line in found if line) for field in ("alarms", "correct_runs"))
        assert f"| {rule} | {' | '.join(caught)} | {alarms} of {runs:,} |" in TEXT


def test_the_table_of_correct_models():
    for (name, dtype), result in results().items():
        (line,) = result["correct"]
        assert (line["alarms"], line["errors"]) == ([], 0)
        counts = f"{line['models']:,} | {line['passed']:,} | {line['not_finite']}"
        assert f"| {dtype} | {NAMES[name]} | {counts} | {line['largest_share']:.0%} |" in TEXT
