"""The commands port, inspect and check state dicts of the articles' own code."""

import article_code as code
import pytest
import torch
from article_files import bits, config_of, filled, make_state_dict, parameters_of

import triglot
from triglot.shared.model.recipes import recipe


def test_the_command_ports_in_both_directions(command, workplace):
    model = filled(code.Translation(recipe("translation")))
    torch.save(model.state_dict(), "run.pt")
    heads = ("--set", "heads=4")
    status, out, error = command("port", "run.pt", "model.npz", *heads)
    assert (status, error) == (0, "")
    assert "left out embed_x.pe: Triglot computes" in out
    assert "left out embed_y.pe: Triglot computes" in out
    assert command("port", "model.npz", "back.pt", "--target-dialect", "article-translation", "--quiet") == (0, "", "")
    back = torch.load("back.pt", weights_only=True)
    code.Translation(recipe("translation")).load_state_dict(back, strict=True)
    for name, tensor in parameters_of(model.state_dict()).items():
        assert bits(back[name]) == bits(tensor), name
    assert command("inspect", "back.pt", *heads, "--quiet") == (0, "", "")


def test_the_command_takes_sizes(command, workplace):
    torch.save(make_state_dict("annotated"), "run.pt")
    arguments = ("port", "run.pt", "model.npz", "--source-dialect", "article-annotated", "--quiet")
    assert command(*arguments)[0] == 2
    assert command(*arguments, "--config", "annotated-tiny") == (0, "", "")
    config = config_of("annotated").to_dict()
    shown = recipe("annotated").to_dict()
    sizes = [f"{name}={config[name]}" for name in config if config[name] != shown[name] or name == "heads"]
    assert command(*arguments, *(part for size in sizes for part in ("--set", size))) == (0, "", "")
    assert triglot.load("model.npz").config == config_of("annotated")


@pytest.mark.long
def test_the_parity_command_reads_a_state_dict(command, workplace):
    torch.save(make_state_dict("annotated"), "run.pt")
    arguments = ("parity", "run.pt", "--config", "annotated-tiny", "--framework", "torch", "--quiet")
    assert command(*arguments, "--source-dialect", "article-annotated") == (0, "", "")
    assert command(*arguments) == (0, "", "")
