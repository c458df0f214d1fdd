"""The table of the audit in ``docs/parity.md`` comes from the newest result in ``bench/results``."""

import json
from pathlib import Path

from triglot.impls import FRAMEWORKS
from triglot.parity.audit.catalogue import BUGS

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_says_what_the_last_audit_found():
    newest = max((ROOT / "bench/results").glob("*-audit.json"))
    result = json.loads(newest.read_text())
    text = (ROOT / "docs/parity.md").read_text()
    rows = [
        f"| {rule['rule']} | {rule['bugs_caught']} of {rule['bugs']} | {rule['alarms']} of {rule['correct_runs']} |"
        for rule in result["rules"]
    ]
    assert "\n".join(rows) in text
    assert f"bench/results/{newest.name}" in text
    assert f"holds {len(BUGS)} bugs" in text
    assert {bug["bug"] for bug in result["bugs"]} <= {*BUGS}
    assert result["dtypes"] == ["float32"]
    assert result["sound"]
    assert all(bug["caught"] == bug["located"] == bug["tries"] == len(FRAMEWORKS) for bug in result["bugs"])
    assert {line["framework"] for line in result["correct"]} == {*FRAMEWORKS}
    in_methods = [bug for bug in result["bugs"] if bug["tries_in_methods"]]
    caught = sum(bug["caught_in_methods"] == bug["tries_in_methods"] for bug in in_methods)
    assert f"There, {caught} of {len(in_methods)} are caught" in " ".join(text.split())
