"""``sentence-transformers``: from texts to vectors, with the folder of the model as it is."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sentence_transformers import SentenceTransformer

from triglot.bench.run.cases import Case
from triglot.bench.run.text_arm import TextArm
from triglot.bench.run.texts import Texts
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError


def prepare(checkpoint: Checkpoint, case: Case, parts: Sequence[Texts]) -> TextArm:
    """Build a ``SentenceTransformer``. It sorts the texts by length, and batches them by 32, its default.

    Raises:
        FrameworkError: the model is not a folder of sentence-transformers.
    """
    folder, cell = parts[0].folder, case.cell
    if not (folder / "modules.json").is_file():
        raise FrameworkError(f"{folder} has no modules.json; name a folder that sentence-transformers saved")
    model: Any = SentenceTransformer(
        str(folder), device=cell.device, local_files_only=True, model_kwargs={"dtype": cell.dtype}
    )
    model.max_seq_length = cell.length
    model.default_prompt_name = None  # no arm puts a prompt before the texts
    return TextArm(partial(model.encode, show_progress_bar=False), parts)
