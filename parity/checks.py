"""The forward passes that the harness runs.

``end_to_end``      the whole model on the given inputs; every named value is the model's own
``local``           each step of these runs again, judged on its actual inputs (``trials/forward.py``)
``normal``, ``low_variance``, ``large``, ``offset``, ``masking``
                    each step receives probe values (``probes.py``)
``length_one``, ``left_padding``, ...
                    the whole model on unusual inputs (``unusual.py``)
``masks``           the masks that each framework builds, bit for bit
``api``             what ``encode``, ``heads``, ``forward`` and ``attend`` return, and the weights, bit for bit
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triglot.shared.arrays import Array, Bools, representable
from triglot.shared.inputs import Batch, PairBatch, fit_dtype, random_batch
from triglot.shared.model import masks
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import named_values, parameters

from . import probes, unusual
from .output_names import API, MASKS
from .revealing import Weights, offset, quiet_scale

END_TO_END = "end_to_end"
LOCAL = "local"
LOCAL_CHECKS = (LOCAL, *probes.KINDS)
QUIET, EXTREME = "quiet", "extreme"
CHECKS = (MASKS, API, END_TO_END, *LOCAL_CHECKS, *unusual.NAMES, QUIET, EXTREME)
# The kind of check (``shared/choices.py``) to which each check belongs; those that are not here are kinds themselves.
KINDS = {
    **dict.fromkeys(LOCAL_CHECKS, "steps"),
    **dict.fromkeys((API, END_TO_END, *unusual.NAMES, QUIET, EXTREME), "forward"),
}
LENGTHS = (24, 11, 1, 17)  # of the rows of most batches
# If a model has at most so many positions, most batches have a row of that length. Then ``maximum_length`` needs no
# shape of its own, for which JAX would compile for two seconds.
SHORT_MODEL = 48


@dataclass(frozen=True)
class Check:
    """One run of a model: on which weights, on which batch, and which values replace its own.

    ``weights``: "given", "perturbed" so that no norm and no bias is the identity, or "loud", "quiet" and "extreme"
    (``revealing.py``). ``values``: None for the model's own, or a kind of probe values. ``methods``: also call the
    public methods. ``steps``: also judge each step on its actual inputs.
    """

    name: str
    batch: Batch
    weights: Weights
    values: probes.Kind | None = None
    methods: bool = False
    steps: bool = False


def plan(config: ModelConfig, shallow: ModelConfig, batches: Sequence[Batch], seed: int, dtype: str) -> list[Check]:
    """Return every check for a model of ``config`` in ``dtype``. ``batches`` are the inputs of the end-to-end check.

    ``shallow``: the configuration of the revealing weights. Embedded inputs are rounded to ``dtype``, as the weights
    are. Most batches have the same shape, because some frameworks compile their programs anew for every shape.
    """
    generator = np.random.default_rng([seed, 1])
    lengths = row_lengths(config)
    checks = [Check(END_TO_END, batch, "given") for batch in batches]
    checks[0] = replace(checks[0], methods=True, steps=True)
    checks += [
        Check(kind, probes.batch(kind, config, lengths, generator, dtype), "perturbed", kind) for kind in probes.KINDS
    ]
    for name in unusual.NAMES:
        # The first and last id must be those of the given table. This check also runs the given model again after
        # other models have run.
        of_given = name == "edge_ids"
        batch = unusual.unusual_batch(name, config if of_given else shallow, lengths, generator)
        # The steps of a long batch would take as long as those of all others together.
        short = name != "maximum_length" or config.source_max_length <= SHORT_MODEL
        checks.append(Check(name, batch, "given" if of_given else "loud", methods=True, steps=short))
    if any(parameter.role == "scale" for parameter in parameters(config).values()):
        quiet = unusual.scaled(random_batch(shallow, lengths, generator), quiet_scale(config, dtype))
        checks.append(Check(QUIET, quiet, "quiet", methods=True, steps=True))
    extreme = unusual.shifted(random_batch(shallow, lengths, generator), offset(config, dtype))
    # Without steps: the probe values of "large" and "offset" already judge them there.
    checks.append(Check(EXTREME, extreme, "extreme", methods=True))
    # The shortest inputs come first, so that whatever a model keeps from its first call is too short for the others.
    checks.sort(key=lambda check: check.name != "length_one")
    return [replace(check, batch=rounded_batch(check.batch, dtype)) for check in checks]


def row_lengths(config: ModelConfig) -> list[int]:
    """Return the lengths of the rows of most batches. The first is the longest."""
    longest = config.source_max_length
    first, *others = (min(longest, length) for length in LENGTHS)
    return [longest if longest <= SHORT_MODEL else first, *others]


def judged_tokens(name: str, batch: Batch, config: ModelConfig) -> Bools | None:
    """Return where the named value is judged: at real tokens, as a mask that broadcasts to it. None: everywhere."""
    valid = batch.real_tokens()
    selected: Bools | None = None
    axes = named_values(config)[name].axes
    for axis, meaning in enumerate(axes):
        if meaning in valid:
            shape = [1] * len(axes)
            shape[axes.index("batch")], shape[axis] = valid[meaning].shape
            tokens = valid[meaning].reshape(shape)
            selected = tokens if selected is None else selected & tokens
    return selected


def expected_masks(inputs: Batch) -> dict[str, Array]:
    """Return the canonical masks of a batch as ``masks.<name>``."""
    expected = {f"{MASKS}.{name}": mask for name, mask in masks.all_masks(inputs.valid).items()}
    if isinstance(inputs, PairBatch):
        expected |= {f"{MASKS}.target_{name}": mask for name, mask in masks.all_masks(inputs.target_valid).items()}
    return expected


def rounded_batch(inputs: Batch, dtype: str) -> Batch:
    """Return the batch with its vectors rounded to ``dtype``."""
    vectors = {name: array for name, array in inputs.arrays().items() if array.dtype.kind == "f"}
    if dtype == "float64" or not vectors:
        return inputs
    return replace(inputs, **{name: representable(array, dtype) for name, array in fit_dtype(vectors, dtype).items()})
