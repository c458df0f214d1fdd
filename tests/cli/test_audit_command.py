"""``triglot audit``: what it prints, and when it fails."""

import json

import pytest

from triglot.parity.audit import report
from triglot.parity.audit.record import Record
from triglot.parity.audit.report import AuditReport
from triglot.parity.audit.rules import NAMES
from triglot.parity.audit.run import NOTHING, Outcome
from triglot.shared.errors import OutputError


@pytest.mark.long
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


def test_an_interrupted_audit_resumes(command, workplace, monkeypatch):
    first, second = (Outcome(NOTHING, "torch", "float32", seed, False, "pass", times_budget=0.5) for seed in (0, 1))
    tried = []

    def run(task):
        tried.append([*task.seeds])
        return [second]

    monkeypatch.setattr("triglot.parity.audit.run.run_all", lambda work, jobs: map(run, work))
    log = workplace / "audit.jsonl"
    Record(log).add([first])
    log.write_text(log.read_text() + '{"bug": "half a li')
    arguments = ("audit", "--framework", "torch", "--seeds", "0", "--models", "2", "--record", "audit.jsonl")
    code, out, _ = command(*arguments)
    assert code == 0
    assert tried == [[1]]
    assert Record(log).outcomes == [first, second]
    code, again, _ = command(*arguments)
    assert (code, tried, again) == (0, [[1]], out)


@pytest.mark.parametrize("content", ["no JSON\n", '{"bug": "?"}\n', "[1]\n", "notes without a last newline"])
def test_a_file_that_is_not_a_record_is_refused_and_kept(content, command, workplace):
    (workplace / "audit.jsonl").write_text(content)
    code, _, err = command("audit", "--record", "audit.jsonl")
    assert code == 2
    assert "audit.jsonl is not the record of an audit; name another file, or remove it" in err
    assert (workplace / "audit.jsonl").read_text() == content


def test_a_record_is_not_also_the_report(command, workplace):
    code, _, err = command("audit", "--record", "audit.jsonl", "--json", "audit.jsonl")
    assert (code, list(workplace.iterdir())) == (2, [])
    assert "audit.jsonl would be written twice" in err
    code, _, err = command("audit", "--record", "missing/audit.jsonl")
    assert code == 2
    assert "the folder missing does not exist" in err


def test_a_record_that_cannot_be_read_or_written_is_refused(tmp_path):
    with pytest.raises(OutputError, match=r"cannot read .*: Is a directory; name another file"):
        Record(tmp_path)
    gone = Record(tmp_path / "folder" / "audit.jsonl")
    with pytest.raises(OutputError, match=r"cannot write .*: No such file or directory; name another file"):
        gone.add([])
