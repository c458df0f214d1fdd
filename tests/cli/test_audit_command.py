"""``triglot audit``: what it prints, and when it fails."""

import json

from triglot.parity.audit import report
from triglot.parity.audit.report import AuditReport
from triglot.parity.audit.rules import NAMES
from triglot.parity.audit.run import NOTHING, Outcome


def test_audit_shows_what_each_rule_sees(command, workplace):
    code, out, err = command(
        *("audit", "--framework", "torch", "--bug", "tanh GELU", "--models", "1", "--jobs", "1"),
        *("--json", "audit.json"),
    )
    assert (code, err) == (0, "")
    assert "tanh GELU for the exact GELU" in out
    assert "every bug was caught" in out
    content = json.loads((workplace / "audit.json").read_text())
    assert content["schema"] == "triglot.audit/1"
    (line,) = content["bugs"]
    assert (line["caught"], line["located"], line["tries"]) == (1, 1, 1)
    assert (line["caught_in_methods"], line["tries_in_methods"]) == (1, 1)
    assert line["times_budget"]["torch"] > 10
    caught = {rule["rule"]: rule["bugs_caught"] for rule in content["rules"]}
    assert caught[report.VERDICT] == 1
    # On the weights of BERT's initialisation, a tanh GELU changes no output visibly.
    assert caught["allclose, 1e-3 relative and absolute"] == caught["cosine above 0.9999"] == 0


def test_a_bug_that_does_not_exist_is_refused(command):
    code, out, err = command("audit", "--bug", "no such bug")
    assert (code, out) == (2, "")
    assert "no bug has 'no such bug' in its name" in err


def test_an_audit_of_nothing_is_refused(command):
    code, out, err = command("audit", "--seeds", "0", "--models", "0")
    assert (code, out) == (2, "")
    assert "there is nothing to try" in err


def test_a_missed_bug_and_a_false_alarm_are_not_sound():
    blind = dict.fromkeys(NAMES, False)
    caught = Outcome("a bug", "torch", "float32", 0, False, "diverged", complaints=blind)
    missed = Outcome("a bug", "torch", "float32", 0, False, "pass", complaints=blind)
    correct = Outcome(NOTHING, "torch", "float32", 0, False, "pass", complaints=blind)
    alarm = Outcome(NOTHING, "torch", "float32", 0, False, "diverged", complaints=blind)
    invisible = Outcome("bias of the keys missing", "torch", "float32", 0, True, "pass")
    assert AuditReport([caught, correct, invisible]).sound
    assert not AuditReport([missed, correct]).sound
    assert not AuditReport([caught, Outcome(NOTHING, "jax", "float32", 0, False, "error")]).sound
    refused = AuditReport([Outcome(NOTHING, "paddle", "float16", 0, False, "error")])
    assert refused.sound
    assert [(line.models, line.passed, line.errors) for line in refused.correct_lines] == [(1, 0, 1)]
    assert not AuditReport([caught, alarm]).sound
    ours, *others = AuditReport([caught, missed, alarm]).rule_lines
    assert (ours.bugs_caught, ours.bugs, ours.alarms, ours.correct_runs) == (0, 1, 1, 1)
    assert not any(line.bugs_caught or line.alarms for line in others)
