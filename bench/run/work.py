"""The work of a cell: the files that its workers read, the truth for their outputs, and its throughput."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triglot.bench.report.report import Result
from triglot.parity.generation import GenerationTruth
from triglot.parity.judge import diverged
from triglot.parity.outputs import ForwardTruth
from triglot.parity.report import Judgement
from triglot.parity.run import rounded_weights
from triglot.parity.training import TrainingTruth
from triglot.shared import checkpoint as checkpoints
from triglot.shared.arrays import FLOATS, Array
from triglot.shared.checkpoint import Checkpoint, TextSettings, npz
from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.errors import FrameworkError, InputError, TriglotError
from triglot.shared.memory import return_freed_memory

from . import batches, flops, parts, texts
from .arms import PLAN
from .cases import Cell, Settings
from .parts import Part
from .texts import Texts

JUDGED_TOKENS = 1024  # of a batch; the reference computes them in a few seconds
QUICKLY_JUDGED_TOKENS = 256  # of a batch, with ``--quick``
CONFIRMED_TOKENS = 128  # of a batch on which the reference confirms gradients, because the complex step is slow

Truth = ForwardTruth | TrainingTruth | GenerationTruth


@dataclass(frozen=True)
class BenchedModel:
    """A model to time: its name in the report, its weights, and its tokenizer file and folder if it has any."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Path | None = None
    folder: Path | None = None

    def digest(self) -> str:
        """Return a hash of the weights, the configuration and the tokenizer."""
        tokenizer = b"" if self.tokenizer is None else self.tokenizer.read_bytes()
        return hashlib.sha256(self.checkpoint.digest.encode() + tokenizer).hexdigest()


class Work:
    """The work of a cell, with its files in ``folder``.

    Raises:
        InputError: the cell does not fit the model.
        CheckpointError: the weights do not fit the dtype.
    """

    def __init__(self, model: BenchedModel, cell: Cell, settings: Settings, folder: Path) -> None:
        self.folder, self.cell = folder, cell
        self._time_limit = settings.time_limit
        config = self.config = model.checkpoint.config
        self._weights = rounded_weights(model.checkpoint, cell.dtype)
        if cell.workload == "embed":  # texts are cut at the length of the cell, and no arm puts a prompt before them
            self._weights = replace(self._weights, text=TextSettings(cell.length, {}))
        self.checkpoint = folder / "weights.npz"
        checkpoints.save(self._weights, self.checkpoint)
        self.batches = batches.batches_of_cell(cell, config, model.tokenizer, settings.seed)
        timed: Sequence[Part] = self.batches
        further: Sequence[Part] = []  # other sentences, to show what new shapes cost
        if cell.workload == "embed":
            assert model.tokenizer is not None  # or there would be no batches
            source = model.tokenizer, model.folder or model.tokenizer.parent
            timed, further = ([Texts(each, *source)] for each in texts.texts_of_calls(cell.batch))
        elif cell.order != "padded" and cell.workload == "forward":
            further = batches.further_batches(cell, config, model.tokenizer, settings.seed)
        self.files = [parts.write(part, folder / f"timed-{number}") for number, part in enumerate(timed)]
        self.further_files = [parts.write(part, folder / f"further-{number}") for number, part in enumerate(further)]
        self._truth: Truth | FrameworkError | None = None
        generated = config.target_max_length if cell.workload == "generation" else 0
        # At least two rows, because the first one has no padding, and padding must be judged too.
        # Fewer rows of a gradient would take longer, because they need a second model.
        is_quick = settings.quick and cell.workload not in WITH_GRADIENTS
        judged = QUICKLY_JUDGED_TOKENS if is_quick else JUDGED_TOKENS
        least = 2
        if cell.workload == "embed":  # texts of all lengths, so that most batches of an arm are judged
            judged, least = 0, texts.JUDGED
        self.first_rows = batches.first_rows(self.batches[0], judged, least=least, generated=generated)
        # The first rows of a forward pass can be judged alone, but all rows contribute to a gradient. If not all of
        # them are judged, workers compute the first rows once more, with a second model.
        self.judged_file: Path | None = None
        is_part = len(self.batches) > 1 or self.first_rows.rows < self.batches[0].rows
        if cell.workload in WITH_GRADIENTS and is_part:
            self.judged_file = folder / "judged.npz"
            npz.write(self.judged_file, self.first_rows.arrays())

    def judge(self, outputs: Mapping[str, Array]) -> Judgement:
        """Return the judgement of what an arm computed; see the truths.

        Raises:
            FrameworkError: the truth cannot be computed.
        """
        vectors = outputs.get(texts.VECTORS) if self.cell.workload == "embed" else None
        if vectors is not None and len(vectors) != self.cell.batch:
            return diverged(texts.VECTORS, f"there are {len(vectors)} vectors for {self.cell.batch} texts")
        return self.truth().judge(outputs)

    def truth(self) -> Truth:
        """Return the truth, computed at the first call.

        Raises:
            FrameworkError: the truth cannot be computed.
        """
        if self._truth is None:
            try:
                self._truth = self._compute_truth()
                return_freed_memory()  # the gradients of a large model take gigabytes on the way
            except (TriglotError, MemoryError) as error:
                self._truth = FrameworkError(str(error) or "not enough memory to compute the truth")
        if isinstance(self._truth, FrameworkError):
            raise self._truth
        return self._truth

    def _compute_truth(self) -> Truth:
        if self.cell.workload in WITH_GRADIENTS:
            return TrainingTruth(
                self._weights,
                self.first_rows,
                batches.first_rows(self.first_rows, CONFIRMED_TOKENS),
                self.cell.dtype,
                rate=PLAN.rate if self.cell.workload == "training" else None,
                folder=self.folder,
                threads=self.cell.threads,
                time_limit=self._time_limit,
            )
        if self.cell.workload == "generation":
            return GenerationTruth(self._weights, self.first_rows, self.cell.dtype)
        return ForwardTruth(self._weights, self.first_rows, self.cell.dtype)

    def add_throughput(self, result: Result, generated_tokens: int | None) -> None:
        """Fill in the throughput of a result that has a latency.

        The length of a generation depends on the model, so only its tokens are counted, not its operations.
        """
        assert result.latency_ms is not None
        seconds = result.latency_ms.p50 / 1000
        result.sequences_per_second = sum(batch.rows for batch in self.batches) / seconds
        if self.cell.workload != "embed":  # each arm divides the texts into batches in its own way
            result.fill = batches.fill_of(self.batches)
        tokens = generated_tokens
        if self.cell.workload != "generation":
            workload, config = self.cell.workload, self._weights.config
            itemsize = FLOATS[self.cell.dtype].itemsize
            tokens = sum(int(batch.valid.sum()) for batch in self.batches)
            operations = sum(flops.operations(workload, config, batch) for batch in self.batches)
            moved = sum(flops.least_bytes(workload, config, batch, itemsize) for batch in self.batches)
            result.useful_gflops = operations / seconds / 1e9
            result.flops_per_byte = operations / moved
        result.tokens_per_second = tokens / seconds if tokens else None


def check_cells(cells: Sequence[tuple[Cell, BenchedModel]], seed: int) -> None:
    """Check, before anything is timed, that at least one cell fits its model. The others become skipped rows.

    Raises:
        InputError: no cell fits, or there is none.
    """
    if not cells:
        raise InputError("there is nothing to time; give at least one batch size and one length")
    errors: list[InputError] = []
    for cell, model in cells:
        try:
            batches.batches_of_cell(cell, model.checkpoint.config, model.tokenizer, seed)
        except InputError as error:
            errors.append(error)
    if len(errors) == len(cells):
        raise errors[0]
