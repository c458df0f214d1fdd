"""The position tables in state dicts of the articles are compared with Triglot's, left out, and written again."""

import re
from dataclasses import replace

import article_code as code
import numpy as np
import pytest
import torch
from article_files import BUFFERS, config_of, load, make_state_dict, parameters_of, read, save

from triglot import port
from triglot.shared.errors import PortingError
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import (
    article,
)


@pytest.mark.parametrize("length", [2, 50, 512, 5000])
@pytest.mark.parametrize("width", [2, 24, 128, 512])
def test_a_table_in_float32_is_within_the_bound(length, width):
    config = replace(recipe("annotated-tiny"), hidden_size=width)
    difference, bound = article.position_error(config, code.position_table(length, width).numpy())
    assert 0 < difference <= bound <= 2 * length * 2.0**-24


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_buffers_are_compared_and_reported(name, dtype, tmp_path):
    save({key: tensor.to(dtype) for key, tensor in make_state_dict(name).items()}, tmp_path / "run.pt")
    left_out = read(tmp_path / "run.pt", name).left_out
    assert left_out.keys() == BUFFERS[name].keys()
    for reason in left_out.values():
        assert re.fullmatch(rf"Triglot computes {config_of(name).positions} .* differs .* at most [\d.e-]+", reason)


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_are_optional_and_always_written(name, tmp_path):
    tensors = make_state_dict(name)
    save(parameters_of(tensors), tmp_path / "run.pt")
    ported = read(tmp_path / "run.pt", name)
    assert ported.left_out == {}
    port(ported, tmp_path / "back.pt", target_dialect=f"article-{name}")
    back = load(tmp_path / "back.pt")
    for buffer, side in BUFFERS[name].items():
        length = getattr(ported.config, f"{side}_max_length")
        table = TABLES[ported.config.positions](length, ported.config.hidden_size)
        assert back[buffer].dtype == torch.float32
        np.testing.assert_array_equal(back[buffer].numpy(), table[None].astype(np.float32))


@pytest.mark.parametrize(
    ("shift", "difference"),
    [
        (1e-5, "1e-05"),
        (0.5, "0.5"),
        (np.nan, "inf"),
    ],
)
def test_a_buffer_with_other_numbers_is_refused(shift, difference, tmp_path):
    tensors = make_state_dict("annotated")
    tensors["src_pos.pe"] = tensors["src_pos.pe"].double()
    tensors["src_pos.pe"][0, 6, 3] += shift
    path = tmp_path / "run.pt"
    save(tensors, path)
    problem = rf"src_pos\.pe differs from the sinusoidal positions by up to {difference}, rounding explains 8\.3e-07"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: ')}{problem}"):
        read(path, "annotated")


def test_the_bound_grows_with_the_position(tmp_path):
    """5e-6 can be rounding at the end of a table of 50 rows, but not at its beginning."""
    config = replace(config_of("annotated"), source_max_length=50, target_max_length=50)
    tensors = make_state_dict("annotated", source_max_length=50, target_max_length=50)
    exact = torch.from_numpy(TABLES["sinusoidal"](50, 24).copy())[None]
    for row, fits in ((49, True), (3, False)):
        table = exact.clone()
        table[0, row, 0] += 5e-6
        save({**tensors, "src_pos.pe": table}, tmp_path / "run.pt")
        if fits:
            assert "src_pos.pe" in read(tmp_path / "run.pt", "annotated", config).left_out
        else:
            with pytest.raises(PortingError, match=r"src_pos\.pe differs .* up to 5e-06, rounding explains 4\.8e-07"):
                read(tmp_path / "run.pt", "annotated", config)


def test_the_table_of_other_positions_is_refused(tmp_path):
    save(make_state_dict("translation"), tmp_path / "run.pt")
    with pytest.raises(PortingError, match=r"embed_x\.pe differs from the sinusoidal positions by up to [\d.]+"):
        read(tmp_path / "run.pt", "translation", replace(config_of("translation"), positions="sinusoidal"))
