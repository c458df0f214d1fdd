"""The planned checks: their batches, probe values and weights."""

from dataclasses import replace

import numpy as np
import pytest
from judged_model import CONFIG

from triglot.parity.checks import CHECKS, plan, row_lengths
from triglot.parity.revealing import revealing_checkpoints
from triglot.parity.truth import Reference
from triglot.shared.arrays import LARGEST_FLOAT16
from triglot.shared.inputs import random_batches
from triglot.shared.model.recipes import recipe


def test_the_plan_has_every_check_and_the_extreme_lengths():
    batches = random_batches(CONFIG, 2, 3, seed=0)
    checks = plan(CONFIG, CONFIG, batches, seed=0, dtype="float32")
    assert {check.name for check in checks} | {"masks", "api", "local"} == set(CHECKS)
    by_name = {check.name: check.batch for check in checks}
    assert not by_name["masking"].valid[-1].any()
    assert by_name["short_rows"].rows > 32
    assert not by_name["short_rows"].valid.all()
    assert by_name["maximum_length"].valid.shape[1] == CONFIG.source_max_length
    repeated = by_name["repeated_tokens"].arrays()["source"]
    assert repeated.shape[1] > 1
    assert (repeated == repeated[:, :1]).all()
    assert not all(check.batch.valid.all() for check in checks if check.name == "normal")


def test_probe_values_are_drawn_in_float64(make_checkpoint):
    """Sums of float32 numbers are exact in float64 in almost every order, so their noise would be zero."""
    batches = random_batches(CONFIG, 1, 4, 0)
    check = next(check for check in plan(CONFIG, CONFIG, batches, seed=0, dtype="float64") if check.name == "offset")
    values = Reference(make_checkpoint(CONFIG), "float64").replacements(check, 0)
    assert {value.dtype.name for value in values.values()} == {"float64"}
    assert all((value != value.astype(np.float32)).mean() > 0.99 for value in values.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probes_for_masking_have_scores_close_to_the_masking_value(dtype, make_checkpoint):
    config = replace(CONFIG, masking="fill", masking_value=-1e4)
    batches = random_batches(config, 1, 4, 0)
    check = next(check for check in plan(config, config, batches, seed=0, dtype=dtype) if check.name == "masking")
    values = Reference(make_checkpoint(config), dtype).replacements(check, 0)
    scores = values["encoder.layers.0.attention.scores"][:, :, 1::2]
    near = scores[..., : (scores.shape[3] + 1) // 2]
    assert np.abs(near + 1e4).max() < 8


@pytest.mark.parametrize(("positions", "longest"), [(2, 2), (48, 48), (49, 24)])
def test_a_short_model_has_its_greatest_length_in_most_batches(positions, longest):
    config = replace(CONFIG, source_max_length=positions)
    assert max(row_lengths(config)) == longest
    checks = plan(config, config, random_batches(config, 1, 4, 0), seed=0, dtype="float32")
    (full,) = (check.batch for check in checks if check.name == "maximum_length")
    assert full.valid.shape == ((4, longest) if longest == positions else (1, positions))
    assert full.valid[:, [0, -1]].all()
    assert full.valid.all() == (positions == 2)
    assert full.valid.mean() > 0.93, "so that Paddle does not pack it, and parity covers its program for such batches"


PROCESSES = [("", "dan", ""), ("", "da", ""), ("n", "da", "n"), ("n", "da", ""), ("", "na", "")]


@pytest.mark.parametrize("processes", PROCESSES, ids=str)
@pytest.mark.parametrize("embedding_process", ["", "nd"])
@pytest.mark.parametrize("name", ["bert-base-tiny", "translation-tiny"])
def test_extreme_weights_do_not_overflow_float16(name, embedding_process, processes):
    pre, post, final = processes
    config = replace(
        recipe(name),
        **{"embedding_process": embedding_process, "embedding_scale": True, "normalize_memory": False},
        **{"pre_process": pre, "post_process": post, "final_process": final},
    )
    extreme = revealing_checkpoints(config, "float16", 0)["extreme"]
    checks = plan(config, extreme.config, random_batches(config, 1, 4, 0), seed=0, dtype="float16")
    (check,) = (check for check in checks if check.name == "extreme")
    largest = max(np.abs(value).max() for value in Reference(extreme, "float16").trace(check.batch, {}).values())
    assert largest < LARGEST_FLOAT16
