"""Checksums of tensors, and mappings of tensors that verify them on first access."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triglot.shared.arrays import Array, in_c_order, storable
from triglot.shared.errors import CheckpointError


def sha256(tensor: Array) -> str:
    """Return the checksum of the tensor's numbers in C order. Weight formats are little-endian on every machine."""
    return hashlib.sha256(storable(np.asarray(tensor, order="C")).data).hexdigest()


class LazyTensors(Mapping[str, Array]):
    """Tensors that take time to read. ``unread`` has arrays of their shapes and dtypes; do not read their numbers."""

    unread: Mapping[str, Array]

    def with_checksum(self, name: str) -> tuple[Array, str]:
        """Return a tensor in C order, and its checksum."""
        tensor = in_c_order(self[name])
        return tensor, sha256(tensor)

    def __contains__(self, name: object) -> bool:
        return name in self.unread

    def __iter__(self) -> Iterator[str]:
        return iter(self.unread)

    def __len__(self) -> int:
        return len(self.unread)


class VerifiedTensors(LazyTensors):
    """Arrays of mapped files, each compared with its checksum on first access.

    ``unread`` gives access to the same arrays without reading their numbers. ``paths`` names the file of each array.
    """

    def __init__(self, paths: Mapping[str, Path], arrays: Mapping[str, Array], checksums: Mapping[str, str]) -> None:
        self.unread = arrays
        self._paths = paths
        self._unverified = dict(checksums)

    def verify_all(self) -> None:
        """Compare every array with its checksum now.

        Raises:
            CheckpointError: one of them differs.
        """
        for name in self:
            self[name]

    def with_checksum(self, name: str) -> tuple[Array, str]:
        """See ``LazyTensors.with_checksum``. The numbers are read once, even if this is the first access."""
        expected = self._unverified.get(name)
        if expected is None:
            return super().with_checksum(name)  # the array may have changed since
        return self[name], expected

    def __getitem__(self, name: str) -> Array:
        array = self.unread[name]
        expected = self._unverified.get(name)
        if expected is not None:
            if sha256(array) != expected:
                raise CheckpointError(
                    f"cannot read {self._paths[name]}: the checksum of {name} is wrong, so the file is damaged; "
                    "restore it from a copy"
                )
            self._unverified.pop(name, None)  # another thread may have removed it already
        return array


class DeferredTensors(LazyTensors):
    """Tensors that ``read`` returns, each when it is accessed."""

    def __init__(self, unread: Mapping[str, Array], read: Callable[[str], Array]) -> None:
        self.unread = unread
        self._read = read

    def __getitem__(self, name: str) -> Array:
        if name not in self.unread:
            raise KeyError(name)
        return self._read(name)


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
    return tensors.unread if isinstance(tensors, LazyTensors) else tensors


def with_checksum(tensors: Mapping[str, Array], name: str) -> tuple[Array, str]:
    """Return a tensor in C order, and its checksum. Its numbers are read once, and transposed at most once."""
    if isinstance(tensors, LazyTensors):
        return tensors.with_checksum(name)
    tensor = in_c_order(tensors[name])
    return tensor, sha256(tensor)


def stand_in(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of this dtype and shape that needs no memory, for ``LazyTensors.unread``."""
    return np.broadcast_to(np.zeros((), dtype), shape)
