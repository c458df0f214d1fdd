"""The tokenizer of a model folder: a port copies its files to the new folder without reading them."""

import os
import shutil
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError

# The files of the tokenizers of BERT, RoBERTa, XLM-R, DistilBERT and ELECTRA.
_NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "unigram.json"),
)


def tokenizer_files(folder: Path, encoder: Path) -> dict[str, Path]:
    """Return the files of the tokenizer beside the encoder of a model folder.

    They are copied whatever they hold. So a link may lead to a file in the folder or in a Hugging Face cache, but to no
    other file on the machine.

    Raises:
        PortingError: a file is such a link, or is not a regular file.
    """
    paths = {name: path for name in _NAMES if os.path.lexists(path := encoder / name)}
    for path in paths.values():
        if not path.is_file() or (is_link_out_of(folder, path) and not _is_in_cache(path.resolve())):
            raise PortingError(
                f"{path} leads to {os.path.realpath(path)}; expected a file in {folder} or in a Hugging Face cache; "
                "replace the link with the file"
            )
    return paths


def is_link_out_of(folder: Path, path: Path) -> bool:
    """Return whether an existing path in a folder leads out of it when all links are followed."""
    return os.path.exists(path) and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _is_in_cache(path: Path) -> bool:
    """Return whether a file is in a Hugging Face cache, where links in ``snapshots`` lead to ``blobs``."""
    return path.parent.name == "blobs" and (path.parents[1] / "snapshots").is_dir()


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the files of the tokenizer into a folder, if the checkpoint was just read from a folder with a tokenizer.

    Raises:
        OSError: a file cannot be copied.
    """
    for name, path in checkpoint.tokenizer.items():
        shutil.copyfile(path, folder / name)


def remark(checkpoint: Checkpoint) -> str:
    """Return what a written folder lacks: the tokenizer, unless the checkpoint was just read from a folder with one."""
    return "" if checkpoint.tokenizer else "the tokenizer is not part of a checkpoint; copy its files into the folder"
