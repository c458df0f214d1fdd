"""Puts the tables of a result into a document: ``python -m triglot.bench.report.readme RESULT.json README.md``.

They stand between two marks, and a test compares them with the newest result in ``bench/results``.
"""

import json
import re
import sys
from pathlib import Path

from triglot.shared import files

from .report import markdown

BEGIN, END = "<!-- begin of the benchmark's tables -->", "<!-- end of the benchmark's tables -->"
_BETWEEN = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def with_tables(document: str, result: Path) -> str:
    """``document`` with the tables of ``result`` between its marks.

    Raises:
        ValueError: the marks are not there.
    """
    if not _BETWEEN.search(document):
        raise ValueError(f"there is no {BEGIN} ... {END}; put both into the document")
    return _BETWEEN.sub(lambda _: f"\n{markdown(json.loads(result.read_text()))}\n", document)


def main() -> None:
    """Write the document anew."""
    result, document = map(Path, sys.argv[1:])
    text = with_tables(document.read_text(), result)
    with files.writing(document) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
