"""The tables that the commands print. Those of ``triglot bench`` are in ``bench/report``."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from triglot.parity import probes, unusual
from triglot.parity.audit.report import AuditReport
from triglot.parity.checks import END_TO_END, EXTREME, LOCAL, QUIET
from triglot.parity.output_names import API, MASKS
from triglot.parity.report import ORIGINAL, WORKER, Report, Row, worst
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.console import console, number_columns, print_line, table, word_columns
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import OUTPUT
from triglot.shared.training.translation import Score

_STYLES = {
    "pass": "green",
    "diverged": "bold red",
    "skipped": "yellow",
    "error": "bold yellow",
    "incomplete": "bold yellow",
}

# The lines of the parity table: title, the checks that a line summarises, and its only value if it has just one.
_PARITY_LINES: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("masks", (MASKS,), None),
    ("encode, heads, weights", (API,), None),
    ("output", (END_TO_END,), OUTPUT),
    ("every value, end to end", (END_TO_END,), None),
    ("every step alone", (LOCAL,), None),
    ("every step on probes", probes.KINDS, None),
    ("unusual inputs", (*unusual.NAMES, QUIET, EXTREME), None),
    *((kind, (kind,), None) for kind in ("invariants", "generation", "gradients", "training")),
    ("the original", (ORIGINAL,), None),
    ("worker", (WORKER,), None),
)

_RECENT_STEPS = slice(-50, None)  # what the summary of a training run averages over


def print_training(checkpoint: Checkpoint, target: Path, framework: str, unseen: Score) -> None:
    """Print the result of a training run in two lines."""
    training = checkpoint.training
    assert training is not None
    loss = training.history.loss[_RECENT_STEPS].mean()
    accuracy = training.history.accuracy[_RECENT_STEPS].mean()
    print_line(
        f"{target}: {training.moments.steps} steps, the last in {framework}; "
        f"over the last 50 steps: loss {loss:.4f}, {accuracy:.2%} of tokens correct"
    )
    print_line(
        f"unseen sentences, greedy decoding: {unseen.tokens:.2%} of tokens correct, "
        f"{unseen.sequences:.1%} of sentences entirely correct"
    )


def print_parity(report: Report) -> None:
    """Print one line per framework and kind of check: the value that used up the largest share of its budget."""
    screen = console()
    screen.print(f"{report.model}: {report.inputs}")
    screen.print(f"weights {report.weights_digest}")
    screen.print(f"number format {report.settings}")
    screen.print()
    lines = table(
        *word_columns("framework", "check"),
        *number_columns("values"),
        Column("worst value", overflow="fold"),
        *number_columns("error", "noise", "times\nnoise", "of\nbudget"),
        *word_columns("verdict"),
    )
    for framework in report.frameworks:
        for title, checks, value in _PARITY_LINES:
            rows = [row for row in report.rows if row.framework == framework and row.check in checks]
            rows = [row for row in rows if value is None or row.name == value]
            if rows:
                _add_parity_line(lines, framework, title, rows)
        lines.add_section()
    screen.print(lines)
    screen.print()
    for problem in (*report.divergences, *report.failures, *report.skipped):
        screen.print(problem)
    for sentence in report.remarks:
        screen.print(sentence)
    screen.print(Text("verdict: ").append(report.verdict, _STYLES[report.verdict]))


def parity_summary(report: Report) -> str:
    """Return the verdict and the reasons for it in one line."""
    return f"verdict: {report.verdict}; {'; '.join([*report.divergences, *report.failures, *report.skipped])}"


def print_audit(report: AuditReport) -> None:
    """Print a line for each bug, then the verdicts on correct code, then a line for each rule."""
    screen = console()
    frameworks = list(dict.fromkeys(outcome.framework for outcome in report.outcomes))
    lines = table(
        Column("bug", overflow="fold"),
        *number_columns("caught", "located"),
        *word_columns("by check"),
        *number_columns(*(f"{name}\nx budget" for name in frameworks), "in methods"),
    )
    for line in report.bug_lines:
        lines.add_row(
            line.bug,
            f"{line.caught}/{line.tries}",
            f"{line.located}/{line.tries}",
            line.check,
            *("-" if (used := line.times_budget[name]) is None else f"{used:,.3g}" for name in frameworks),
            f"{line.caught_in_methods}/{line.tries_in_methods}",
        )
    if report.bug_lines:
        screen.print(lines)
        missed = [line.bug for line in report.bug_lines if line.caught < line.tries]
        screen.print(f"not caught: {', '.join(missed)}" if missed else "every bug was caught")
        screen.print()
    counted = number_columns("models", "passed", "not finite", "errors", "alarms", "largest share")
    correct = table("correct code", "dtype", *counted)
    for line in report.correct_lines:
        counts = line.models, line.passed, line.not_finite, line.errors, len(line.alarms)
        correct.add_row(line.framework, line.dtype, *map(str, counts), f"{line.largest_share:.0%}")
    if report.correct_lines:
        screen.print(correct)
        screen.print()
    rules = table(Column("rule", overflow="fold"), *number_columns("bugs caught", "alarms on correct code"))
    for rule in report.rule_lines:
        rules.add_row(rule.rule, f"{rule.bugs_caught}/{rule.bugs}", f"{rule.alarms}/{rule.correct_runs}")
    screen.print(rules)


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what ``triglot inspect`` shows, as plain JSON types."""
    tensors = {
        name: {
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "axes": list(schema.parameters(checkpoint.config)[name].axes),
            "bytes": tensor.nbytes,
            "source": checkpoint.source_names.get(name),
        }
        for name, tensor in checkpoint.tensors.items()
    }
    return {
        "digest": checkpoint.digest,
        "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
        "bytes": sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        "config": checkpoint.config.to_dict(),
        "tensors": tensors,
        "aliases": checkpoint.aliases,
        "text": checkpoint.text and checkpoint.text.to_dict(),
    }


def print_contents(inspected: Mapping[str, Any]) -> None:
    """Print the result of ``contents``: the configuration, text settings, one line per tensor, and the totals."""
    screen = console()
    fields = table("configuration", "")
    for name, value in inspected["config"].items():
        fields.add_row(name, str(value))
    screen.print(fields)
    screen.print()
    if inspected["text"]:
        settings = table("text", "")
        for name, value in inspected["text"].items():
            settings.add_row(name, Text(str(value)))
        screen.print(settings)
        screen.print()
    tensors = table("tensor", "axes", *number_columns("shape", "dtype", "bytes"))
    for name, tensor in inspected["tensors"].items():
        shape = " x ".join(map(str, tensor["shape"]))
        tensors.add_row(name, ", ".join(tensor["axes"]), shape, tensor["dtype"], f"{tensor['bytes']:,}")
    screen.print(tensors)
    screen.print()
    for alias, name in inspected["aliases"].items():
        screen.print(f"{alias} is {name}")
    count = len(inspected["tensors"])
    screen.print(f"{count} tensors, {inspected['parameters']:,} parameters, {inspected['bytes']:,} bytes")
    screen.print(f"digest {inspected['digest']}")


def print_recipes(recipes: Mapping[str, ModelConfig]) -> None:
    """Print one line per recipe."""
    lines = table(
        *word_columns("recipe"),
        *number_columns("layers", "hidden", "heads", "feed-\nforward", "vocab-\nulary", "max\nlength"),
        *word_columns("pre / post\n/ final", "acti-\nvation", "masking"),
        *number_columns("parameters"),
    )
    for name, config in recipes.items():
        parameters = sum(math.prod(parameter.shape) for parameter in schema.parameters(config).values())
        lines.add_row(
            name,
            f"{config.layers}+{config.decoder_layers}" if config.decoder_layers else str(config.layers),
            str(config.hidden_size),
            str(config.heads),
            str(config.feed_forward_size),
            str(config.source_vocabulary or "-"),
            str(config.source_max_length),
            " / ".join(process or "-" for process in (config.pre_process, config.post_process, config.final_process)),
            config.activation,
            config.masking,
            f"{parameters:,}",
        )
    console().print(lines)


def print_doctor(report: Mapping[str, Any]) -> None:
    """Print the environment, and which frameworks can be used."""
    screen = console()
    screen.print(f"Python {report['python']}, {report['system']}, {report['cores']} cores, {report['processor']}")
    screen.print(f"instructions: {report['instructions'] or 'unknown'}")
    width = max(map(len, report["packages"])) + 2
    for package, version in report["packages"].items():
        screen.print(f"{package:{width}}{version or 'not installed'}")
    for name, value in report["variables"].items():
        screen.print(f"{name}={value}")
    usable = ", ".join(report["frameworks"]) or "none; install triglot[torch], triglot[paddle] or triglot[jax]"
    screen.print(f"frameworks: {usable}")


def _add_parity_line(lines: Table, framework: str, title: str, rows: Sequence[Row]) -> None:
    row = worst(rows)
    lines.add_row(
        framework,
        title,
        str(len(rows)),
        row.name if row.budget_used else "-",
        _number(row.error),
        _number(row.noise),
        "-" if row.times_noise is None else f"{row.times_noise:,.2f}",
        f"{row.budget_used:,.0%}" if row.budget_used < math.inf else "-",
        Text(row.verdict, _STYLES[row.verdict]),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value else "0"
