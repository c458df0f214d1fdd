"""The names of what implementations return. Light to import: every worker needs them.

``output``, ``pooler``, ``masked_lm``, ...      the output and the heads of a forward pass
``averaged``                                    the averaged weights of a model that is attention alone
``masks.NAME``                                  the masks that a framework builds
``api.NAME``                                    what a public method returns
``ids``, ``ids.cached``, ``ids.recomputed``     what was generated
``loss``, ``gradients.NAME``, ``weights.NAME``  loss, gradients, and weights after Adam's first step
``true.NAME``, ``noise.NAME``                   what is known in float64 about a loss or a gradient
``fresh.PART.NAME``, ``resumed.PART.NAME``      moments and weights after a step of Adam
``continued.PART.NAME``                         the same after the step that follows the resumed one
``continued.gradients.NAME``                    the gradients before it, in a new model of the same weights
``trained.NAME``                                what a public method returns after it
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.training.plan import BETAS

MASKS = "masks"
API = "api"
ENCODE = f"{API}.encode"
FORWARD = f"{API}.forward"
ATTEND = f"{API}.attend"
AVERAGED_WEIGHTS = f"{API}.attend.weights"
CHANGED_WEIGHTS = f"{API}.weights"  # the number of tensors that differ from the checkpoint's
IDS = "ids"
CACHED, RECOMPUTED, ALONE = f"{IDS}.cached", f"{IDS}.recomputed", f"{IDS}.alone"
GENERATED = "generated"  # the number of tokens that all batches of a generation got; not judged
LOSS = "loss"
GRADIENTS = "gradients."
FIRST_MOMENTS, SECOND_MOMENTS = "first_moments.", "second_moments."
WEIGHTS = "weights."
TRUE, NOISE = "true.", "noise."
FRESH, RESUMED, CONTINUED = "fresh.", "resumed.", "continued."
TRAINED = "trained."


def name_outputs(output: Any, heads: Any) -> dict[str, Any]:
    """Return the outputs of a forward pass by name; ``heads`` maps names to heads, or is the averaged weights."""
    return {"output": output, **(cast("dict[str, Any]", heads) if isinstance(heads, dict) else {"averaged": heads})}


def name_gradients(loss: float, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Return loss and gradients by name."""
    return {LOSS: np.asarray(loss), **{GRADIENTS + name: np.asarray(value) for name, value in gradients.items()}}


def name_first_step(loss: float, first_moments: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return loss, gradients and weights after the first step by name.

    After one step, Adam's first moment is a fixed share of the gradient.
    """
    gradients = {name: np.asarray(moment) / (1 - BETAS[0]) for name, moment in first_moments.items()}
    return name_gradients(loss, gradients) | {WEIGHTS + name: weight for name, weight in weights.items()}


def is_after_end(ids: Array, end_id: int) -> Bools:
    """Return where the end id came before, bool (B, T). The first token is given, so it ends nothing."""
    ends = ids == end_id
    ends[:, 0] = False
    return np.cumsum(ends, axis=1) > ends
