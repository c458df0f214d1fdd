"""The members of a zip archive that another program wrote: ``.pt`` and ``.npz``."""

import struct
import zipfile
from pathlib import Path

from triglot.shared.checkpoint.zip_structure import MOST_MEMBERS
from triglot.shared.errors import PortingError

# The exceptions that zipfile raises for damaged archives.
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, LookupError, EOFError, struct.error)


def read(path: Path) -> dict[str, bytes]:
    """Return every member by name, after comparing its checksum. Members must be stored, so small files stay small.

    Raises:
        PortingError: the file is not a zip archive, is damaged, or holds compressed or repeated members.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            _check(infos, path.stat().st_size)
            return {info.filename: archive.read(info) for info in infos}
    except OSError as error:
        raise PortingError(f"cannot read {path}: {error.strerror or error}; restore the file") from error
    except _DAMAGE as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file, or save it again") from error


def _check(infos: list[zipfile.ZipInfo], size: int) -> None:
    if len(infos) > MOST_MEMBERS:
        raise ValueError(f"it has {len(infos)} members, expected at most {MOST_MEMBERS}")
    names: set[str] = set()
    for info in infos:
        if info.filename in names:
            raise ValueError(f"member {info.filename} occurs twice")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError(f"member {info.filename} is compressed")
        names.add(info.filename)
    if sum(info.file_size for info in infos) > size:
        raise ValueError("its members are larger than the file")
