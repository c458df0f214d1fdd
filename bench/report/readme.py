"""Write the short benchmark table of the README: ``python -m triglot.bench.report.readme RESULT.json README.md``.

The table is between two marks. A test compares it with the newest result in ``bench/results``.
"""

import re
import sys
from pathlib import Path

from triglot.shared import files

from . import document, tables
from .report import Report

BEGIN, END = "<!-- start of the benchmark's tables -->", "<!-- end of the benchmark's tables -->"
ROWS = 5
COLUMNS = ("arm", "times the baseline", "ms", "tokens/s", "of roofline")
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
    """Return the fastest arms of the first cell as a Markdown table, sorted by the ratio to the baseline."""
    table = report.tables()[0]
    fastest = [row for row in table.rows if row.result.status == "ok"][:ROWS]
    texts = [[tables.cells(row)[column] for column in COLUMNS] for row in fastest]
    lines = [
        f"**{tables.title(table.cell)}**",
        "",
        f"The {len(fastest)} fastest of {len(table.rows)} arms, sorted by their time relative to {table.baseline}:",
        "",
        *tables.markdown_table([tables.heading(column, table) for column in COLUMNS], texts),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Update the document."""
    result, target = map(Path, sys.argv[1:])
    text = with_table(target.read_text(), result)
    with files.writing(target) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
