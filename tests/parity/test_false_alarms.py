"""Correct implementations never diverge, however wild their models are.

``make audit`` tries hundreds of wild models in every number format.
"""

from dataclasses import replace

import pytest

from triglot.impls import build
from triglot.parity.audit.run import NOTHING, Task, run
from triglot.parity.audit.wild import wild_checkpoint, wild_config
from triglot.parity.jobs import call_methods
from triglot.parity.judge import Subject
from triglot.parity.revealing import revealing_checkpoints
from triglot.parity.trials.invariants import invariant_trials
from triglot.parity.truth import Reference
from triglot.shared.arrays import HALVES
from triglot.shared.model.recipes import recipe

# Each was called wrong once, by one framework at least.
ONCE_CALLED_WRONG = [
    pytest.param(411, "float32", id="the variance of equal entries, computed in float64"),
    pytest.param(65, "float64", id="sums that are exact in almost every order"),
    pytest.param(59, "float16", id="padding that contributes by design"),
]


@pytest.mark.parametrize(("seed", "dtype"), ONCE_CALLED_WRONG)
def test_correct_code_never_diverges(seed, dtype, framework):
    (outcome,) = run(Task(NOTHING, framework, dtype, [seed]))
    if framework == "paddle" and dtype in HALVES:
        assert outcome.verdict == "error", "Paddle now has 16-bit kernels on a CPU"
        return
    # In float16, the weights of the wild model itself overflow.
    assert outcome.verdict == ("incomplete" if dtype == "float16" else "pass"), outcome


@pytest.mark.parametrize(("masking_value", "holds"), [(-3.0, False), (-1e9, True)])
def test_an_invariant_is_judged_only_if_the_reference_has_it(masking_value, holds, make_checkpoint):
    """Scores of loud weights come close to -3, so padding contributes by design."""
    config = replace(recipe("bert-base-tiny"), masking="add", masking_value=masking_value)
    checkpoint = revealing_checkpoints(config, "float32", 0)["loud"]
    subjects = {"torch": Subject("torch", "eager", "float32")}
    trials = invariant_trials(Reference(checkpoint), subjects, "float32", 0)
    base, other_padding = trials[:2]
    results = call_methods(build("torch", checkpoint), base.job().batch)
    assert not list(base.judge([("torch", results)]))
    assert bool(list(other_padding.judge([("torch", results)]))) == holds


def test_wild_models_differ():
    configs = [wild_config(seed) for seed in range(40)]
    assert len(set(configs)) == len(configs)
    assert {config.kind for config in configs} == {"encoder", "encoder_decoder", "attention"}
    assert {config.masking for config in configs} == {"exclude", "fill", "add"}
    assert {config.norm for config in configs} == {"layer_norm", "scalar_layer_norm"}
    assert max(config.layers for config in configs) == 12
    assert max(config.hidden_size for config in configs) > 200
    assert wild_checkpoint(0, "float32").digest == wild_checkpoint(0, "float32").digest
