"""``sentence-transformers``: from texts to vectors, with the folder of the model as it is."""

from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers import SentenceTransformer

from triglot.bench.run.arms import SENTENCE_EMBEDDING
from triglot.bench.run.call_files import Texts
from triglot.bench.run.cases import Case
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError


class SentenceTransformersArm:
    """A ``SentenceTransformer`` and its texts. It sorts them by length, and batches them by 32, its default.

    Raises:
        FrameworkError: the folder of the tokenizer has no model of sentence-transformers.
    """

    def __init__(self, checkpoint: Checkpoint, case: Case, calls: Sequence[Texts]) -> None:
        folder, cell = calls[0].tokenizer.parent, case.cell
        if not (folder / "modules.json").is_file():
            raise FrameworkError(f"{folder} has no modules.json; expected a folder of sentence-transformers")
        self.model: Any = SentenceTransformer(
            str(folder), device=cell.device, local_files_only=True, model_kwargs={"dtype": cell.dtype}
        )
        self.model.max_seq_length = cell.length
        self.model.default_prompt_name = None  # no arm puts a prompt before the texts
        self.use(calls)

    def use(self, calls: Sequence[Texts]) -> None:
        """Encode these texts from now on."""
        self.texts = [text for call in calls for text in call.texts]

    def call(self) -> Array:
        """Encode all texts."""
        return self.model.encode(self.texts, show_progress_bar=False)

    def wait(self, results: Array) -> None:
        """Do nothing: the vectors are finished."""

    def outputs(self, results: Array) -> Mapping[str, Array]:
        """Return the vectors."""
        return {SENTENCE_EMBEDDING: results}
