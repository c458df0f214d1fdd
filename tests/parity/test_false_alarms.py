"""Correct implementations never diverge, however wild their models are.

``make audit`` tries hundreds of wild models in every number format.
"""

import pytest

from triglot.parity.audit.run import NOTHING, Task, run
from triglot.parity.audit.wild import wild_checkpoint, wild_config
from triglot.parity.trials import forward
from triglot.shared.arrays import HALVES

# Each of these models was once reported as diverged in at least one framework.
ONCE_CALLED_WRONG = [
    pytest.param(411, "float32", id="the variance of equal entries, computed in float64"),
    pytest.param(50, "float32", id="a token that decides the noise of every channel"),
    pytest.param(681, "bfloat16", id="rounded embeddings that cancel in a channel"),
    pytest.param(426, "bfloat16", id="entries that all round to the same number before a norm"),
    pytest.param(921, "float16", id="an overflow that the noise runs miss by chance"),
    pytest.param(14, "float16", id="a tied head whose table holds the largest numbers"),
    pytest.param(65, "float64", id="sums that are exact in almost every order"),
    pytest.param(59, "float16", id="padding that contributes by design"),
]


@pytest.mark.parametrize(("seed", "dtype"), ONCE_CALLED_WRONG)
def test_correct_code_never_diverges(seed, dtype, framework):
    (outcome,) = run(Task(NOTHING, framework, dtype, [seed]))
    if framework == "paddle" and dtype in HALVES:
        assert outcome.verdict == "error", "Paddle now has 16-bit kernels on a CPU"
        return
    overflows = (seed, dtype) in ((921, "float16"), (59, "float16"))  # of the model itself
    assert outcome.verdict == ("incomplete" if overflows else "pass"), outcome


def test_only_small_errors_may_precede_an_unlucky_rounding(monkeypatch):
    """Otherwise a model in which every step is almost wrong would pass."""
    monkeypatch.setattr(forward, "ORDINARY_SHARE", 0.01)
    (outcome,) = run(Task(NOTHING, "torch", "bfloat16", [426]))
    assert outcome.verdict == "diverged"


def test_wild_models_differ():
    configs = [wild_config(seed) for seed in range(100)]
    assert len(set(configs)) == len(configs)
    assert {config.kind for config in configs} == {"encoder", "encoder_decoder", "attention"}
    assert {config.masking for config in configs} == {"exclude", "fill", "add"}
    assert {config.norm for config in configs} == {"layer_norm", "scalar_layer_norm"}
    assert {config.source_vocabulary == 0 for config in configs if config.kind == "encoder_decoder"} == {True, False}
    for name in ("feed_forward_bias", "norm_bias", "final_norm_bias"):
        assert {getattr(config, name) for config in configs} == {True, False}
    assert max(config.layers for config in configs) == 12
    assert max(config.hidden_size for config in configs) > 200
    assert wild_checkpoint(0, "float32").digest == wild_checkpoint(0, "float32").digest
