"""Verify a port: the original and the port must compute the same, within the budgets of a parity run."""

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from triglot.parity.originals import LIBRARIES, Original, find_original
from triglot.parity.report import Row, worst
from triglot.shared import porting
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError, PortingError, TriglotError
from triglot.shared.inputs import Batch, random_batches, read_arrays
from triglot.shared.model.recipes import ConfigOverride
from triglot.shared.porting import Recognised

_DTYPE = "float32"
_TIME_LIMIT = 600.0  # seconds
_BATCHES, _ROWS = 2, 4


def verify(original: Original, checkpoint: Checkpoint, batches: Sequence[Batch]) -> str:
    """Run an original on ``batches`` and judge it against the truth of ``checkpoint``. Return the result in words.

    Raises:
        PortingError: the original computes something else, or cannot be run.
    """
    # These load SciPy, which only a verification needs.
    from triglot.parity.originals.comparison import RunningOriginal, not_compared  # noqa: PLC0415
    from triglot.shared.environment import cores  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        running = RunningOriginal(original, batches, _DTYPE, Path(folder), cores(), _TIME_LIMIT)
        try:
            rows = running.judge(checkpoint)
        finally:
            running.close()
    return _passed(rows, original.description, not_compared(rows, checkpoint.config))


def verify_target(checkpoint: Checkpoint, target: Path, dialect: str, shard_size: int | None = None) -> str:
    """Verify a copy of what ``porting.write`` will write to ``target``. Return the result in words.

    Raises:
        PortingError: the library of ``dialect`` computes other results from it, or cannot run.
        InputError: no library runs the dialect.
        OutputError: there is no space for a copy.
    """
    if dialect not in LIBRARIES:
        raise InputError(f"no library runs the dialect {dialect}")
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        copy = Path(folder) / f"copy{target.suffix}"
        porting.write(checkpoint, copy, dialect, shard_size=shard_size)
        original = find_original(copy, dialect, checkpoint.config)
        batches = random_batches(checkpoint.config, _BATCHES, _ROWS, 0)
        try:
            return verify(original, checkpoint, batches).replace(str(copy), str(target))
        except PortingError as error:
            raise PortingError(str(error).replace(str(copy), str(target))) from error


def verify_example(example: Path, checkpoint: Checkpoint) -> str:
    """Judge the recorded outputs of an original against the truth of ``checkpoint``. Return the result in words.

    Raises:
        PortingError: the original computed something else.
        InputError: the file cannot be read, has no output, or does not fit the model.
    """
    from triglot.parity.originals.comparison import judge_example, not_compared  # noqa: PLC0415
    from triglot.parity.originals.recorded import read_example  # noqa: PLC0415

    recorded = read_example(checkpoint.config, example)
    rows = judge_example(recorded, checkpoint)
    return _passed(rows, str(example), not_compared(rows, checkpoint.config, recorded.ignored))


def read_by_example(
    path: Path, example: Path, dialect: str | None, config: ConfigOverride, heads: Collection[str] | None
) -> tuple[Recognised, Checkpoint, str]:
    """Read weights in their dialect; if several match the names, in the one that computes the outputs of an example.

    Also return the result of ``verify_example``. It is empty if only one dialect matches, because nothing was computed.

    Raises:
        InputError: the example cannot be read.
        PortingError: no dialect matches; or several do, and not exactly one of them computes the outputs.
        TriglotError: the weights cannot be read in the only possible dialect; see ``porting.read``.
    """
    read_arrays(example)  # reports an unreadable file before the dialects are tried
    possible = porting.candidates(path, dialect, heads)
    if len(possible) == 1:
        return possible[0], possible[0].read(config), ""
    fitting: list[tuple[Recognised, Checkpoint, str]] = []
    reasons: list[str] = []
    for candidate in possible:
        try:
            checkpoint = candidate.read(config)
            words = verify_example(example, checkpoint)
        except TriglotError as error:
            reasons.append(f"in {candidate.dialect.name}, {error}")
        else:
            fitting.append((candidate, checkpoint, words))
    if not fitting:
        raise PortingError(
            f"{path} does not compute the outputs in {example} in any dialect that matches: {'; '.join(reasons)}; "
            "correct the configuration (config=, or --set on the command line) or the example"
        )
    if len(fitting) > 1:
        names = " and ".join(candidate.dialect.name for candidate, _, _ in fitting)
        raise PortingError(
            f"{path} computes the outputs in {example} in {names}; name the right one with --source-dialect"
        )
    return fitting[0]


def _passed(rows: Sequence[Row], description: str, uncompared: str) -> str:
    row = worst(rows)
    if row.verdict == "error":
        raise PortingError(f"cannot run {description}: {row.reason}; correct that, or port without verification")
    if row.verdict != "pass":
        raise PortingError(
            f"{description} computes something other than the port: {row.name}: {row.reason}; correct the "
            "configuration or the dialect"
        )
    return f"{description}: {row.name} uses {row.budget_used:.0%} of its budget{uncompared}"
