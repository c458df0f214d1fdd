"""Pickles are never read: a pickle is a program, and reading it runs it. Its first bytes say what is one.

``npz.py`` refuses those that take the place of a checkpoint; here are those in the place of a model of transformers.
"""

from pathlib import Path

from ..errors import PortingError

# What the libraries call the pickled weights in a model folder.
_NAMES = ("pytorch_model.bin", "model_state.pdparams")
_WHY = "pickles are never read, because they can run any code: save the model as safetensors where it was made"


def refuse(path: Path) -> None:
    """Refuse a file of weights that is a pickle, whatever its name says.

    Raises:
        PortingError: it is one.
    """
    if _is_pickle(path):
        raise PortingError(f"cannot read {path}: it is a pickle; {_WHY}")


def refuse_folder(folder: Path) -> None:
    """Refuse a folder that has no other weights than pickled ones.

    Raises:
        PortingError: it has these.
    """
    for name in _NAMES:
        if (folder / name).is_file():
            raise PortingError(f"cannot read {folder / name}: it is a pickle; {_WHY}")


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError:
        return False  # whoever reads the file will say so
    if start[:4] == b"PK\x03\x04":  # PyTorch's archives begin with the member NAME/data.pkl
        length = int.from_bytes(start[26:28], "little")
        return start[30 : 30 + length].endswith(b".pkl")
    # The length of a safetensors header may begin with the same two bytes; zeros and a brace follow that.
    is_safetensors = start[5:8] == bytes(3) and start[8:9] == b"{"
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and not is_safetensors
