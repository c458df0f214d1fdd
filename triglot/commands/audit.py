"""``triglot audit``: plant bugs, and show which ones parity catches."""

from pathlib import Path
from typing import Annotated

import typer

from triglot import exit_codes
from triglot.commands.options import FLOAT32, Dtype, Framework, JsonOption, QuietOption
from triglot.commands.output import check_apart, check_output, show, shows_tables, write_json
from triglot.shared.errors import FrameworkError


def audit(
    framework: Annotated[
        list[Framework] | None, typer.Option(help="Framework to plant bugs in; repeatable. Default: all installed.")
    ] = None,
    bug: Annotated[str, typer.Option(metavar="TEXT", help="Plant only the bugs whose names contain this.")] = "",
    seeds: Annotated[int, typer.Option(min=0, help="Sets of weights and inputs for each bug; 0: no bugs.")] = 1,
    models: Annotated[int, typer.Option(min=0, help="Correct models to try, of random shapes and weights.")] = 20,
    dtype: Annotated[Dtype, typer.Option(help="Number format to compute in.")] = FLOAT32,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time. Default: one per core.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append outcomes to FILE, and skip those already in it.")
    ] = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Plant bugs, and show which ones parity catches.

    Each bug of a catalogue is planted in a copy of our implementations, in the whole model and in its public methods
    alone. The second table shows the verdicts on correct models, and the last one shows how simpler rules do.
    --record resumes an interrupted audit; the tables then show everything in the record.
    """
    from triglot import impls, tables  # noqa: PLC0415
    from triglot.parity.audit.catalogue import BUGS  # noqa: PLC0415
    from triglot.parity.audit.record import Record  # noqa: PLC0415
    from triglot.parity.audit.report import AuditReport  # noqa: PLC0415
    from triglot.parity.audit.run import run_all, tasks  # noqa: PLC0415
    from triglot.shared.console import progress  # noqa: PLC0415

    check_output(json_file)
    check_output(record)
    check_apart(record, json_file)
    if not seeds + models:
        raise FrameworkError("seeds and models are both 0, so there is nothing to try; raise one of them")
    names = [name for name in BUGS if bug.lower() in name.lower()]
    if not names:
        raise FrameworkError(f"no bug has {bug!r} in its name; give a word that occurs in one, like GELU")
    frameworks = [name.value for name in framework] if framework else list(impls.installed())
    work = tasks(frameworks, names, dtype.value, seeds=seeds, models=models)
    recorded = Record(record)
    work = recorded.left(work)
    with progress("audit", quiet=quiet) as on_progress:
        for done, found in enumerate(run_all(work, jobs), 1):
            recorded.add(found)
            if on_progress and found:
                on_progress(done, len(work), found[0].bug or "correct code")
    report = AuditReport(recorded.outcomes)
    write_json(json_file, report.to_dict())
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_audit, report)
    raise typer.Exit(exit_codes.OK if report.sound else exit_codes.FOUND)
