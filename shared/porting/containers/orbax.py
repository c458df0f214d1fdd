"""Orbax checkpoints: folders of nested arrays, as ``orbax.checkpoint`` saves the state of a Flax NNX module.

``_METADATA`` lists the arrays; the keys on the way to one, joined by dots, are its name. The state of NNX ends every
path with "value". The arrays are in Zarr's format, version 2 or 3, in one database (OCDBT) or in a folder each, and
TensorStore, the library on which Orbax is built, reads and writes them without JAX.
Source: orbax-checkpoint 0.12.8, ``_src/metadata/tree.py`` and ``_src/serialization/tensorstore_utils.py``.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import Array, in_c_order
from triglot.shared.errors import OutputError, PortingError
from triglot.shared.porting.json_file import read_object

SUFFIX = ".orbax"  # of a folder to write; one to read may have any name
_METADATA = "_METADATA"
_VALUE = "value"
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")  # the types of a value that are stored as arrays
_EMPTY = ("None", "Dict", "List", "Tuple", "NamedTuple")
_RESTORE = "restore the folder, or save the state again with orbax.checkpoint.StandardCheckpointer"
_INSTALL = "install triglot[jax]"
# As Orbax writes them.
_COMPRESSOR = {"id": "zstd", "level": 1}
_KEY_OF_DICT = 2
_WRITER = "_CHECKPOINT_METADATA"
_HANDLER = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
# The most memory that arrays may need. Small arrays may be all zeros, which take no space; weights hardly compress.
_SMALL = 16 << 20  # bytes
_MOST_EXPANSION = 100  # times the bytes of the files


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is the folder of a checkpoint."""
    return (path / _METADATA).is_file()


def read(path: Path) -> dict[str, Array]:
    """Return the arrays by name, in memory, whatever devices they were on.

    Raises:
        PortingError: TensorStore is not installed, or the folder is damaged, holds anything but nested arrays, or
            declares arrays that are far too large for its files.
    """
    tensorstore = _tensorstore(f"cannot read {path}")
    metadata = read_object(path / _METADATA)
    try:
        names = list(_names(metadata))
        if len(names) != len(set(names)):
            raise PortingError("it lists an array twice")
        stores = {name: _open(tensorstore, path, name, metadata) for name in names}
        _check_sizes(path, stores)
        tensors = {name: _array(name, store) for name, store in stores.items()}
    except PortingError as error:
        raise PortingError(f"cannot read {path}: {error}; {_RESTORE}") from error
    except (ValueError, TypeError, LookupError, AttributeError, NotImplementedError, OSError, MemoryError) as error:
        raise PortingError(f"cannot read {path}: {_reason(error)}; {_RESTORE}") from error
    return _without_value(tensors)


def write(target: Path, tensors: Mapping[str, Array]) -> None:
    """Write a folder that ``StandardCheckpointer().restore`` reads into the state of an NNX module.

    Each array has its own folder, as with Orbax's option ``use_ocdbt=False``. Only one array is in memory at a time.
    Orbax itself would hold all of them, and would continue to write in the background after an error.

    Raises:
        PortingError: TensorStore is not installed.
        OutputError: the target exists, or cannot be written.
    """
    tensorstore = _tensorstore(f"cannot write {target}")
    context = tensorstore.Context({"file_io_sync": False})  # the whole folder is synced when it is complete
    entries: dict[str, Any] = {}
    with files.writing_folder(target) as folder:
        for name, tensor in tensors.items():
            keys = (*name.split("."), _VALUE)
            entries[str(keys)] = {
                "key_metadata": [{"key": key, "key_type": _KEY_OF_DICT} for key in keys],
                "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
            }
            array = in_c_order(tensor)
            spec = {
                "driver": "zarr",
                "kvstore": {"driver": "file", "path": f"{folder}/{'.'.join(keys)}/"},
                "metadata": {"chunks": [max(size, 1) for size in array.shape], "compressor": _COMPRESSOR},
                "store_data_equal_to_fill_value": True,
                **{"create": True, "dtype": array.dtype.name, "schema": {"domain": {"shape": array.shape}}},
            }
            try:
                tensorstore.open(spec, context=context).result().write(array).result()
            except ValueError as error:
                raise OutputError(
                    f"cannot write {target}: {_reason(error)}; free space, or choose another target"
                ) from error
        metadata = {"tree_metadata": entries, "use_ocdbt": False, "use_zarr3": False}
        (folder / _METADATA).write_text(json.dumps(metadata), encoding="utf-8")
        (folder / _WRITER).write_text(json.dumps({"item_handlers": _HANDLER}), encoding="utf-8")


def _tensorstore(what_fails: str) -> Any:
    """Return TensorStore, which is imported only when it is needed."""
    try:
        import tensorstore  # noqa: PLC0415
    except ImportError as error:
        raise PortingError(f"{what_fails}: an Orbax checkpoint needs tensorstore; {_INSTALL}") from error
    return tensorstore


def _reason(error: Exception) -> str:
    """Return the cause of an error in a few words. TensorStore puts the system's error code after long paths."""
    number = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(number[1])) if number else " ".join(str(error).split())[:200] or type(error).__name__


def _names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of every array that the metadata list."""
    for entry in metadata["tree_metadata"].values():
        keys = [str(part["key"]) for part in entry["key_metadata"]]
        name, kind = ".".join(keys), entry["value_metadata"]["value_type"]
        if any(not key or set(key) & set("./\\\0") for key in keys):
            raise PortingError(f"its {name[:80]!r} is not the name of an array, because of the dots or slashes in it")
        if kind in _ARRAYS:
            yield name
        elif kind not in _EMPTY:
            raise PortingError(f"its {name[:80]!r} is a {kind!r:.80}, expected an array")


def _open(tensorstore: Any, path: Path, name: str, metadata: Mapping[str, Any]) -> Any:
    """Open an array. Only its metadata is read."""
    if metadata.get("use_ocdbt", True):
        folder = {"driver": "file", "path": f"{path.absolute()}/"}
        store: dict[str, Any] = {"driver": "ocdbt", "base": folder, "path": f"{name}/"}
    else:
        store = {"driver": "file", "path": f"{path.absolute()}/{name}/"}
    spec = {"driver": "zarr3" if metadata.get("use_zarr3") else "zarr", "kvstore": store}
    return tensorstore.open(spec, open=True, read=True).result()


def _check_sizes(path: Path, stores: Mapping[str, Any]) -> None:
    """Refuse arrays that are too large for the files, because TensorStore ends the process if memory runs out.

    TensorStore never decompresses more of a chunk than the chunk's shape, so the shapes limit the memory.
    """
    stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    needed = chunks = 0
    for store in stores.values():
        chunk = store.chunk_layout.write_chunk.shape or ()  # None for a scalar
        needed += max(math.prod(store.shape), math.prod(chunk)) * store.dtype.numpy_dtype.itemsize
        chunks += math.prod(-(-size // of_chunk) for size, of_chunk in zip(store.shape, chunk, strict=True))
    if needed > _SMALL + _MOST_EXPANSION * stored or chunks > stored:
        raise PortingError(
            f"its arrays need {needed:,} bytes in {chunks:,} chunks, but its files have only {stored:,} bytes"
        )


def _array(name: str, store: Any) -> Array:
    """Return the numbers of an array. A missing part is an error, because it would be read as zeros."""
    if store.size and store.storage_statistics(query_not_stored=True).result().not_stored:
        raise PortingError(f"the numbers of {name[:80]!r} are missing")
    numbers = store.read().result()
    if not isinstance(numbers, np.ndarray):
        raise PortingError(f"its {name[:80]!r} is not an array")
    return cast("Array", numbers)


def _without_value(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tensors without the last part of their names, if all names end as those of NNX variables."""
    end = f".{_VALUE}"
    if not all(name.endswith(end) for name in tensors):
        return dict(tensors)
    return {name.removesuffix(end): tensor for name, tensor in tensors.items()}
