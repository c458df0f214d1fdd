"""Write the short benchmark table into the README: ``python -m triglot.bench.report.readme RESULT.json README.md``.

The table goes between two marks in the README. A test checks that it matches the newest result in ``bench/results``.
"""

import re
import sys
from pathlib import Path

from triglot.bench.run.batches import SENTENCE_BATCHES
from triglot.bench.run.cases import Cell
from triglot.shared import files

from . import document, tables
from .report import Report

BEGIN, END = "<!-- start of the benchmark's tables -->", "<!-- end of the benchmark's tables -->"
ROWS, CELLS = 4, 2
COLUMNS = ("ms", "of roofline")
_BETWEEN = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def with_table(text: str, result: Path) -> str:
    """Return a document with the short table of ``result`` between its marks.

    Raises:
        ValueError: the document has no marks.
    """
    if not _BETWEEN.search(text):
        raise ValueError(f"the document has no {BEGIN} ... {END}; add both marks")
    return _BETWEEN.sub(lambda _: f"\n{short_table(document.read(result))}\n", text)


def short_table(report: Report) -> str:
    """Return the fastest arms of the first two cells as one Markdown table, by their ratios in the first cell."""
    shown = report.tables()[:CELLS]
    rows = [{row.result.case.arm: tables.cells(row) for row in table.rows} for table in shown]
    fastest = {arm for of_cell in rows for arm in list(of_cell)[:ROWS]}  # rows without times come last
    arms = [arm for arm in rows[0] if arm in fastest]
    texts = [[arm, *(of_cell[arm][column] for of_cell in rows for column in COLUMNS)] for arm in arms]
    cell = shown[0].cell
    sizes = [_size(each.cell) for each in shown]
    lines = [
        f"**{cell.model}, {cell.workload}, {tables.where(cell)}: {' and '.join(sizes)}**",
        "",
        f"Milliseconds per call, for every arm (a way to compute the model) among the {ROWS} fastest in either size,",
        f"of {len(rows[0])} arms in all. Sorted by the ratios of times in the first size, because these are more",
        'reliable than milliseconds. "Of roofline" is the speed relative to the fastest matrix product.',
        "",
        *tables.markdown_table(["arm", *(heading for size in sizes for heading in (size, "of roofline"))], texts),
    ]
    return "\n".join(lines) + "\n"


def _size(cell: Cell) -> str:
    if cell.order == "padded":
        return f"{cell.batch} x {cell.length}, {cell.fill:.0%} real"
    if cell.workload == "embed":
        return f"{cell.batch} sentences"
    order = "" if cell.order == "arrival" else ", sorted"
    return f"{SENTENCE_BATCHES} batches of {cell.batch} sentences{order}"


def main() -> None:
    """Update the document."""
    result, target = map(Path, sys.argv[1:])
    text = with_table(target.read_text(), result)
    with files.writing(target) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
