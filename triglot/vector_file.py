"""A ``.npy`` file that grows: vectors that a long run computes, safe from whatever interrupts it.

Until the run is complete, its vectors are in ``NAME.part``, and ``NAME.part.json`` says how many of them are safe and
what they were made of. Vectors are synced before they are counted. So a process that is killed loses only those that it
was about to write, and a resumed run continues after the last ones that count.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from io import BytesIO, FileIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.errors import InputError, OutputError

SCHEMA = "triglot.encode/1"
RESUME = "add --resume to continue"


class VectorFile:
    """The file ``path``, to which vectors of a ``size`` are appended. A context: ``complete`` gives it its name.

    ``settings`` say what decides the vectors, in JSON types. ``resume`` continues an interrupted run, if there is one:
    ``rows`` vectors are there, and ``skip`` has to be called with the texts.

    Raises:
        OutputError: the file exists or cannot be written, another process writes it, or an interrupted run is in the
            way.
        InputError: the interrupted run has other settings, or its record is damaged.
    """

    def __init__(self, path: Path, size: int, settings: Mapping[str, Any], *, resume: bool) -> None:
        files.check_writable(path)
        self.path = path
        self._part = path.with_name(f"{path.name}.part")
        self._record = path.with_name(f"{path.name}.part.json")
        if path.exists():
            raise OutputError(f"{path} already exists; remove it, or choose another file")
        if self._record.exists() and not resume:
            raise OutputError(f"{self._record} is left from an interrupted run; {RESUME}, or remove the file")
        self._size = size
        self._settings = dict(settings)
        self._digest = hashlib.sha256()  # of the texts so far
        record = self._read_record() if self._record.exists() else {"rows": 0, "texts": self._digest.hexdigest()}
        self.rows: int = record["rows"]
        self._earlier_texts: str = record["texts"]
        self._file = self._open()

    def __enter__(self) -> "VectorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self.rows:
            self._part.unlink(missing_ok=True)

    def skip(self, texts: Iterator[str]) -> None:
        """Take the texts whose vectors are there from ``texts``.

        Raises:
            InputError: these are not the texts that they were made of.
        """
        self._add_to_digest(islice(texts, self.rows))
        if self._digest.hexdigest() != self._earlier_texts:
            raise InputError(
                f"the first {self.rows} texts are not those of the interrupted run; pass the same texts, or remove "
                f"{self._record}"
            )

    def append(self, texts: Iterable[str], vectors: Array) -> None:
        """Write the ``vectors`` of the next texts, (texts, size).

        Raises:
            OutputError: the disk is full, for example.
        """
        try:
            self._write(np.ascontiguousarray(vectors, "<f4").tobytes())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self._part}: {error.strerror}; free space, and {RESUME}") from error
        self._add_to_digest(texts)
        self.rows += len(vectors)
        self._write_record()

    def complete(self) -> None:
        """Give the file its name.

        Raises:
            OutputError: it cannot be written.
        """
        try:
            self._file.seek(0)
            self._write(_header(self.rows, self._size))
            os.fsync(self._file.fileno())
            os.replace(self._part, self.path)
            self._record.unlink(missing_ok=True)
            files.sync(self.path.parent)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}; free space, and {RESUME}") from error

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        while left:  # a file without a buffer may write a part
            left = left[self._file.write(left) :]

    def _open(self) -> FileIO:
        """Open the growing file behind the last row that counts."""
        header = _header(0, self._size)
        end = len(header) + self.rows * self._size * 4
        try:
            if self.rows and (not self._part.exists() or self._part.stat().st_size < end):
                raise InputError(f"{self._part} is shorter than {self._record} says; remove both files")
            # Without a buffer, whose rest could not be written when the disk is full.
            file = FileIO(os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
            with ExitStack() as stack:
                stack.callback(file.close)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(header)
                file.truncate(end)
                file.seek(end)
                stack.pop_all()
        except BlockingIOError as error:
            raise OutputError(f"cannot write {self._part}: another process writes it; wait for it") from error
        except OSError as error:
            raise OutputError(f"cannot write {self._part}: {error.strerror}; choose a writable folder") from error
        return file

    def _read_record(self) -> dict[str, Any]:
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            if not isinstance(record, dict) or record.get("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            kinds = {"rows": int, "texts": str, "settings": dict}
            if wrong := [name for name, kind in kinds.items() if not isinstance(record.get(name), kind)]:
                raise ValueError(f"{', '.join(wrong)} cannot be read")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot resume from {self._record}: {error}; remove the file") from error
        settings = json.loads(json.dumps(self._settings))
        for name in settings.keys() | record["settings"].keys():
            before, now = record["settings"].get(name), settings.get(name)
            if before != now:
                raise InputError(
                    f"{name} is {now!r:.80}, but the interrupted run has {before!r:.80}; use the same, or remove "
                    f"{self._record}"
                )
        return record

    def _write_record(self) -> None:
        record = {"schema": SCHEMA, "rows": self.rows, "texts": self._digest.hexdigest(), "settings": self._settings}
        with files.writing(self._record) as file:
            file.write(json.dumps(record, indent=1).encode() + b"\n")

    def _add_to_digest(self, texts: Iterable[str]) -> None:
        for text in texts:
            encoded = text.encode()
            self._digest.update(b"%d:" % len(encoded) + encoded)


def _header(rows: int, size: int) -> bytes:
    """Return the start of a .npy file. NumPy leaves room in it, so its length does not depend on the rows."""
    header = BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, size)})
    return header.getvalue()
