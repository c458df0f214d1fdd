"""A ``.npy`` file to which a long run appends vectors, and which survives interruptions.

Until the run is complete, its vectors are in ``NAME.part``, and ``NAME.part.json`` says how many of them are safe, and
which texts and settings they come from. Vectors are synced to disk before they are counted. So a process that is killed
loses only the vectors that it was about to write, and a resumed run continues after the last counted one.
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


def unfinished(path: Path) -> tuple[Path, Path]:
    """Return the two files that hold the vectors of ``path``, and their number, until the run is complete."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


class VectorFile:
    """A context that appends vectors of ``size`` numbers to ``path``.part. ``complete`` renames it to ``path``.

    ``settings``: everything that decides the vectors, in JSON types. ``resume`` continues an interrupted run, if there
    is one. Then ``rows`` vectors exist already. Call ``skip`` with the texts before ``append``.

    Raises:
        OutputError: the file exists or cannot be written, another process writes it, or an interrupted run or another
            file is in the way.
        InputError: the interrupted run has other settings, or its record is damaged.
    """

    def __init__(self, path: Path, size: int, settings: Mapping[str, Any], *, resume: bool) -> None:
        files.check_writable(path)
        self.path = path
        self._part, self._record = unfinished(path)
        files.check_writable(self._record)  # its name is the longest
        self._check_new()
        if self._record.exists() and not resume:
            raise OutputError(f"{self._record} is left from an interrupted run; {RESUME}, or remove the file")
        self._size = size
        self._settings = dict(settings)
        self._digest = hashlib.sha256()  # of the texts so far
        record = self._read_record() if self._record.exists() else {"rows": 0, "texts": self._digest.hexdigest()}
        self.rows: int = record["rows"]
        self._earlier_texts: str = record["texts"]
        self._completed = False
        self._file = self._open()

    def __enter__(self) -> "VectorFile":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._record.exists() and not self._completed and self._is_part(self._file):
            self._part.unlink(missing_ok=True)  # before another process can lock it
        self._file.close()

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
            OutputError: the disk is full, for example, or the file was removed or replaced during the run.
        """
        try:
            self._write(np.ascontiguousarray(vectors, "<f4").tobytes())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self._part}: {error.strerror}; free space, and {RESUME}") from error
        self._check_kept()
        self._add_to_digest(texts)
        rows = self.rows + len(vectors)
        self._write_record(rows)
        self.rows = rows

    def complete(self) -> None:
        """Rename ``path``.part to ``path``.

        Raises:
            OutputError: the file cannot be written, it was removed or replaced during the run, or ``path`` was created
                during the run.
        """
        self._check_kept()
        try:
            self._file.seek(0)
            self._write(_header(self.rows, self._size))
            os.fsync(self._file.fileno())
            self._rename()
            self._completed = True
            self._record.unlink(missing_ok=True)
            files.sync(self.path.parent)
        except FileExistsError as error:
            raise OutputError(f"{self.path} was created during the run; move it away, and {RESUME}") from error
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}; free space, and {RESUME}") from error

    def _rename(self) -> None:
        """Rename ``path``.part to ``path``, unless that exists. A plain rename would replace it."""
        try:
            os.link(self._part, self.path)
        except FileExistsError:
            raise
        except OSError:  # this file system has no hard links
            if os.path.lexists(self.path):
                raise FileExistsError(self.path) from None
            os.rename(self._part, self.path)
        else:
            self._part.unlink()

    def _check_new(self) -> None:
        if os.path.lexists(self.path):
            raise OutputError(f"{self.path} already exists; remove it, or choose another file")

    def _check_unchanged(self, file: FileIO) -> None:
        """Refuse an open file that another process completed or extended before this one locked it."""
        if not self._is_part(file):
            raise OutputError(f"cannot write {self._part}: another process has just completed it; start again")
        self._check_new()
        if self._record.exists() and self._read_record()["rows"] != self.rows:
            raise OutputError(f"cannot write {self._part}: another process has just extended it; start again")

    def _check_own(self, file: FileIO, header: bytes) -> None:
        """Refuse an open file that no unfinished run began, because it may hold the user's data."""
        if os.fstat(file.fileno()).st_nlink > 1:  # a run was killed after it linked the file, or the user linked it
            raise OutputError(f"cannot write {self._part}: it is the same file as another one; remove it")
        begun = header[: header.index(b"(0, ") + 4]  # without the size of the vectors, which depends on the model
        start = file.read(len(begun))
        if not self._record.exists() and not (start.startswith(begun) or begun.startswith(start)):
            raise OutputError(f"cannot write {self._part}: no unfinished run left it; move it away")
        file.seek(0)

    def _check_kept(self) -> None:
        """Raise an error if ``path``.part was removed, or replaced by another file."""
        if not self._is_part(self._file):
            raise OutputError(f"{self._part} was removed or replaced during the run; start again")

    def _is_part(self, file: FileIO) -> bool:
        return self._part.exists() and os.path.samestat(os.fstat(file.fileno()), self._part.stat())

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        while left:  # a file without a buffer may write a part
            left = left[self._file.write(left) :]

    def _open(self) -> FileIO:
        """Open ``path``.part after the last counted row, and lock it."""
        header = _header(0, self._size)
        end = len(header) + self.rows * self._size * 4
        try:
            if self.rows and (not self._part.exists() or self._part.stat().st_size < end):
                raise InputError(f"{self._part} is shorter than {self._record} says; remove both files")
            # Unbuffered: a buffered file would hold bytes that it cannot write when the disk is full.
            file = FileIO(os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
            with ExitStack() as stack:
                stack.callback(file.close)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._check_unchanged(file)
                self._check_own(file, header)
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

    def _write_record(self, rows: int) -> None:
        record = {"schema": SCHEMA, "rows": rows, "texts": self._digest.hexdigest(), "settings": self._settings}
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
