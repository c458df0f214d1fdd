"""The learning curves of a training run, drawn with matplotlib."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from triglot.shared import files
from triglot.shared.errors import OutputError
from triglot.shared.training.plan import Training

FORMATS = ("png", "svg", "pdf")
MOST_MARKED_DECAYS = 20  # more would not be readable
WINDOW = 50  # steps that the dark line averages over


def check_plot(path: Path) -> None:
    """Refuse, before training starts, a plot that could not be drawn after it.

    Raises:
        OutputError: matplotlib is missing, the format is not supported, or the file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise OutputError("plots need matplotlib, which is not installed; install triglot[report]")
    if path.suffix.removeprefix(".") not in FORMATS:
        raise OutputError(f"cannot draw {path}: expected a name that ends in .{', .'.join(FORMATS)}")
    files.check_writable(path)


def draw_training(training: Training, path: Path, title: str) -> None:
    """Draw loss and accuracy over the steps: every step in a pale line, the running mean in a dark one.

    Raises:
        OutputError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 (importing it takes as long as importing a framework)
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogFormatter  # noqa: PLC0415

    figure = Figure(figsize=(9, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    steps = np.arange(1, training.moments.steps + 1)
    _curve(upper, steps, np.asarray(training.history.loss), "tab:blue")
    upper.set(yscale="log", ylabel="cross-entropy (nats per token)", title=title)
    for set_formatter in (upper.yaxis.set_major_formatter, upper.yaxis.set_minor_formatter):
        set_formatter(LogFormatter(minor_thresholds=(1, 0.4)))  # plain numbers, and more of them on a short axis
    _curve(lower, steps, 100 * np.asarray(training.history.accuracy), "tab:green")
    lower.set(xlabel="step", ylabel="correct tokens (%)", ylim=(0, 101))
    decays = range(training.plan.decay_steps, training.moments.steps, training.plan.decay_steps)
    for step in decays if len(decays) <= MOST_MARKED_DECAYS else ():
        for axes in (upper, lower):
            axes.axvline(step, color="0.8", linewidth=1, zorder=0)
        upper.annotate(f"rate {training.plan.rate_at(step):g}", (step, 1), xycoords=("data", "axes fraction"),
                       xytext=(3, -12), textcoords="offset points", fontsize=8, color="0.4")  # fmt: skip
    # A fixed salt and no date make equal curves equal files.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with mpl.rc_context({"svg.hashsalt": "triglot"}), files.writing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150, metadata=metadata)


def _curve(axes: Any, steps: np.ndarray, values: np.ndarray, colour: str) -> None:
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.7)
    width = min(WINDOW, len(values))
    means = np.convolve(values, np.ones(width) / width, mode="valid")
    axes.plot(steps[width - 1 :], means, color=colour, linewidth=1.5)
    axes.annotate(
        f"{means[-1]:.3g}", (steps[-1], means[-1]), xytext=(4, 0), textcoords="offset points", color=colour, va="center"
    )
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
