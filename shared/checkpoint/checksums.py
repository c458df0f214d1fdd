"""Checksums of tensors, and mappings of tensors that verify them on first access."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from triglot.shared.arrays import Array, storable
from triglot.shared.errors import CheckpointError


def sha256(tensor: Array) -> str:
    """Return the checksum of the tensor's numbers in C order. Weight formats are little-endian on every machine."""
    return hashlib.sha256(storable(np.asarray(tensor, order="C")).data).hexdigest()


class VerifiedTensors(Mapping[str, Array]):
    """Arrays of a mapped file, each compared with its checksum on first access.

    ``arrays`` gives access to the same arrays without reading their numbers.
    """

    def __init__(self, path: Path, arrays: Mapping[str, Array], checksums: Mapping[str, str]) -> None:
        self.arrays = arrays
        self._path = path
        self._unverified = dict(checksums)

    def verify_all(self) -> None:
        """Compare every array with its checksum now.

        Raises:
            CheckpointError: one of them differs.
        """
        for name in self:
            self[name]

    def __getitem__(self, name: str) -> Array:
        array = self.arrays[name]
        expected = self._unverified.get(name)
        if expected is not None:
            if sha256(array) != expected:
                raise CheckpointError(
                    f"cannot read {self._path}: the checksum of {name} is wrong, so the file is damaged; restore it "
                    "from a copy"
                )
            self._unverified.pop(name, None)  # another thread may have removed it already
        return array

    def __contains__(self, name: object) -> bool:
        return name in self.arrays  # needs no bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class PrefixedTensors(Mapping[str, Array]):
    """A view of the tensors whose names begin with ``prefix``, under their names without it."""

    def __init__(self, tensors: Mapping[str, Array], prefix: str) -> None:
        self.tensors, self.prefix = tensors, prefix

    def __getitem__(self, name: str) -> Array:
        return self.tensors[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.tensors if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def without_verifying(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the same tensors without their checksums: shapes and dtypes can be checked without reading the numbers."""
    if isinstance(tensors, PrefixedTensors):
        return PrefixedTensors(without_verifying(tensors.tensors), tensors.prefix)
    return tensors.arrays if isinstance(tensors, VerifiedTensors) else tensors
