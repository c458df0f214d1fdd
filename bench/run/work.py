"""What the workers of a cell are given, and what they have to make of it."""

from collections.abc import Sequence
from pathlib import Path

from triglot.bench.machine import memory
from triglot.parity.generation import GenerationTruth
from triglot.parity.outputs import ForwardTruth
from triglot.parity.run import weights_for
from triglot.parity.training import TrainingTruth
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.dtypes import FLOATS
from triglot.shared.errors import FrameworkError, InputError

from . import flops, workloads
from .arms import PLAN, TRAINS
from .cases import Cell
from .settings import Settings

JUDGED_TOKENS = 1024  # of a batch: what the reference computes in a few seconds

CONFIRMED_TOKENS = 128  # of the batch on which the reference confirms gradients: the complex step takes its time

Truth = ForwardTruth | TrainingTruth | GenerationTruth


class Work:
    """What the workers of a cell are given, as files in ``folder``, and what they have to make of it.

    Raises:
        InputError: the cell does not fit the model.
        CheckpointError: the weights do not fit the dtype.
    """

    def __init__(
        self, checkpoint: Checkpoint, cell: Cell, tokenizer: Path | None, settings: Settings, folder: Path
    ) -> None:
        self.folder, self.cell = folder, cell
        self._time_limit, seed = settings.time_limit, settings.seed
        weights = weights_for(checkpoint, cell.dtype, seed)["given"]
        self.checkpoint = folder / "weights.npz"
        checkpoints.save(weights, self.checkpoint)
        self.batches = workloads.batches_of(cell, checkpoint.config, tokenizer, seed)
        self.files = [folder / f"batch-{number}.npz" for number in range(len(self.batches))]
        for file, batch in zip(self.files, self.batches, strict=True):
            npz.write(file, batch.arrays())
        self._weights = weights
        self._expectation: Truth | None = None
        self._unknown: FrameworkError | None = None
        generated = checkpoint.config.target_max_length if cell.workload == "generation" else 0
        # Two at least: the first is whole, and padding is to be judged too.
        self._first = workloads.first_rows(self.batches[0], JUDGED_TOKENS, least=2, generated=generated)
        # Of a forward pass the first rows can be judged alone, but all rows have a part in a gradient.
        self.judged: Path | None = None
        if cell.workload in TRAINS and (len(self.batches) > 1 or len(self._first.valid) < len(self.batches[0].valid)):
            self.judged = folder / "judged.npz"
            npz.write(self.judged, self._first.arrays())

    def expectation(self) -> Truth:
        """What is right, computed when it is first asked for.

        Raises:
            FrameworkError: nobody can say it.
        """
        if self._unknown is not None:
            raise self._unknown
        if self._expectation is None:
            try:
                self._expectation = self._computed()
                memory.give_back()  # gradients of a large model take gigabytes on the way
            except (FrameworkError, MemoryError) as error:
                self._unknown = FrameworkError(str(error) or "there is no memory to compute what is right")
                raise self._unknown from error
        return self._expectation

    def _computed(self) -> Truth:
        if self.cell.workload in TRAINS:
            return TrainingTruth(
                self._weights,
                self._first,
                workloads.first_rows(self._first, CONFIRMED_TOKENS),
                self.cell.dtype,
                rate=PLAN.rate if self.cell.workload == "training" else None,
                folder=self.folder,
                threads=self.cell.threads,
                time_limit=self._time_limit,
            )
        if self.cell.workload == "generation":
            return GenerationTruth(self._weights, self._first, self.cell.dtype)
        return ForwardTruth(self._weights, self._first, self.cell.dtype)

    def facts(self, seconds: float, generated: int | None) -> dict[str, float | None]:
        """Throughput of a call that takes so long. How long a generation becomes is for the model to say."""
        known = self.cell.workload != "generation"
        tokens = sum(int(batch.valid.sum()) for batch in self.batches) if known else generated
        rows = sum(len(batch.valid) for batch in self.batches)
        work = sum(flops.of(self.cell.workload, self._weights.config, batch) for batch in self.batches) if known else 0
        useful = work / seconds / 1e9 if known else None
        itemsize = FLOATS[self.cell.dtype].itemsize
        moved = sum(
            flops.least_bytes(self.cell.workload, self._weights.config, batch, itemsize) for batch in self.batches
        )
        return {
            "tokens_per_second": tokens / seconds if tokens else None,
            "sequences_per_second": rows / seconds,
            "useful_gflops": useful,
            "flops_per_byte": work / moved if known else None,
            "fill": workloads.fill_of(self.batches),
        }


def check_cells(cells: Sequence[tuple[Cell, Checkpoint, Path | None]], seed: int) -> None:
    """Find out, before the first is timed, whether a cell fits its model; those that do not are rows that say so.

    ``cells``: each with the model's checkpoint and its tokenizer, if it has one.

    Raises:
        InputError: none does, or there is none.
    """
    if not cells:
        raise InputError("there is nothing to time; give at least one batch size and one length")
    unfit: list[InputError] = []
    for cell, checkpoint, tokenizer in cells:
        try:
            workloads.batches_of(cell, checkpoint.config, tokenizer, seed)
        except InputError as error:
            unfit.append(error)
    if len(unfit) == len(cells):
        raise unfit[0]
