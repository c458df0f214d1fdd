"""The tables of the audit in ``docs/parity.md`` come from the newest result in ``bench/results``."""

import json
from pathlib import Path

from triglot.impls import FRAMEWORKS
from triglot.parity.audit.catalogue import BUGS

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("float32", "float64", "bfloat16", "float16")
SEEDS = 20


def test_the_document_says_what_the_last_audit_found():
    newest = max((ROOT / "bench/results").glob("*-audit.json"))
    result = json.loads(newest.read_text())
    text = (ROOT / "docs/parity.md").read_text()
    assert f"bench/results/{newest.name}" in text
    assert result["sound"]
    bugs = result["bugs"]
    assert {bug["bug"] for bug in bugs} == {*BUGS}
    assert all(bug["caught"] == bug["located"] == bug["tries"] == SEEDS * len(FRAMEWORKS) for bug in bugs)
    assert f"holds {len(bugs)} bugs" in text
    in_methods = [bug for bug in bugs if bug["tries_in_methods"]]
    caught = sum(bug["caught_in_methods"] == bug["tries_in_methods"] for bug in in_methods)
    assert f"There, {caught} of {len(in_methods)} are caught" in " ".join(text.split())
    rules = [
        f"| {rule['rule']} | {rule['bugs_caught']} of {rule['bugs']} | {rule['alarms']} of {rule['correct_runs']:,} |"
        for rule in result["rules"]
    ]
    assert "\n".join(rules) in text
    tried = {(line["framework"], line["dtype"]): line for line in result["correct"]}
    assert not any(line["alarms"] or line["errors"] for line in tried.values())
    for framework, name in (("torch", "PyTorch"), ("jax", "JAX"), ("paddle", "PaddlePaddle")):
        numbers = [f"{tried[framework, each]['models']:,}" if (framework, each) in tried else "-" for each in DTYPES]
        assert f"| {name} | {' | '.join(numbers)} |" in text
    incomplete = sum(line["not_finite"] for line in tried.values())
    assert f"in {incomplete} of the {sum(line['models'] for line in tried.values()):,} models" in " ".join(text.split())
