"""Write the short benchmark table of the README: ``python -m triglot.bench.report.readme RESULT.json README.md``.

The table stands between two marks. A test compares it with the newest result in ``bench/results``.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triglot.shared import files

from . import report

BEGIN, END = "<!-- begin of the benchmark's tables -->", "<!-- end of the benchmark's tables -->"
ROWS = 5
COLUMNS = ("arm", "times the baseline", "ms", "tokens/s", "of roofline")
_BETWEEN = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def with_table(document: str, result: Path) -> str:
    """Return ``document`` with the short table of ``result`` between its marks.

    Raises:
        ValueError: the document has no marks.
    """
    if not _BETWEEN.search(document):
        raise ValueError(f"the document has no {BEGIN} ... {END}; add both marks")
    return _BETWEEN.sub(lambda _: f"\n{short_table(json.loads(result.read_text()))}\n", document)


def short_table(found: Mapping[str, Any]) -> str:
    """Return the fastest arms of the first cell as a Markdown table, sorted by the ratio to the baseline."""
    cell, members = next(iter(report.by_cell(found).items()))
    fastest = [case for case in members if case["status"] == "ok"][:ROWS]
    places = [report.COLUMNS.index(column) for column in COLUMNS]
    baseline = report.ratio_base(found, cell)
    lines = [
        f"**{report.title(members[0])}**",
        "",
        f"The {len(fastest)} fastest of {len(members)} arms, sorted by their time relative to the baseline, "
        f"{baseline}:",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for case in fastest:
        cells = report.cells(case)
        lines.append(f"| {' | '.join(cells[place] for place in places)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Update the document."""
    result, document = map(Path, sys.argv[1:])
    text = with_table(document.read_text(), result)
    with files.writing(document) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
