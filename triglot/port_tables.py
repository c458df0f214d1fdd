"""The tables of ``triglot port``, in their own file because ``tables.py`` imports parity, which is slow."""

from collections.abc import Sequence

from rich.table import Column, Table

from triglot.shared.console import console, number_columns, print_line, table
from triglot.shared.porting import PortPlan


def print_port(plan: PortPlan, dry_run: bool, findings: Sequence[str]) -> None:
    """Print the result of a port. A dry run first shows one line per tensor.

    ``findings``: sentences about the comparison with the original.
    """
    if dry_run:
        console().print(_planned_tensors(plan))
        console().print()
    if plan.source.sign:
        print_line(f"read as {plan.source.dialect}, because it has {plan.source.sign}")
    for name, reason in plan.left_out.items():
        print_line(f"left out {name}: {reason}")
    for name, reason in plan.added.items():
        print_line(f"added {name}: {reason}")
    if plan.losses is not None:
        print_line(f"converted to {plan.tensors[0].dtype}: {plan.losses.describe()}")
    for finding in findings:
        print_line(finding)
    print_line(f"{plan.target.path}: {len(plan.tensors)} tensors, digest {plan.digest}")
    if dry_run:
        print_line("dry run: everything was checked, and nothing was written")


def _planned_tensors(plan: PortPlan) -> Table:
    lines = table(
        *(Column(header, overflow="fold") for header in ("in the source", "canonical", "in the target")),
        *number_columns("shape", "dtype"),
        Column("changes when read / written", overflow="fold"),
    )
    for tensor in plan.tensors:
        names = tensor.source.name, tensor.name, tensor.target.name
        shape = " x ".join(map(str, tensor.shape))
        lines.add_row(*names, shape, tensor.dtype, f"{tensor.source.transform} / {tensor.target.transform}")
    return lines
