"""Pickles are recognised in every form, refused, and never run."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from triglot.shared import checkpoint
from triglot.shared.errors import CheckpointError


class Canary:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def raw(protocol):
    return lambda canary, path: path.write_bytes(pickle.dumps({"weights": canary}, protocol))


def torch_save(canary, path, **options):
    import torch

    torch.save({"weights": torch.zeros(3), "more": canary}, path, **options)


def old_torch_save(canary, path):
    torch_save(canary, path, _use_new_zipfile_serialization=False)


def object_array(canary, path):
    np.savez(path.with_suffix(".npz"), weights=np.zeros(3), more=np.array([canary], dtype=object))
    path.with_suffix(".npz").rename(path)


def record_array(canary, path):
    np.savez(path.with_suffix(".npz"), more=np.array([(1, canary)], [("number", "i4"), ("object", "O")]))
    path.with_suffix(".npz").rename(path)


PICKLES = {
    **{f"protocol {protocol}": raw(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
    "torch.save": torch_save,
    "old torch.save": old_torch_save,
    "numpy.savez of objects": object_array,
    "numpy.savez of records": record_array,
}


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".pdparams", ".bin"])
@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_is_refused_and_never_run(kind, suffix, tmp_path):
    touched, path = tmp_path / "touched", tmp_path / f"model{suffix}"
    PICKLES[kind](Canary(touched), path)
    place = "more" if "numpy" in kind else "it"
    with pytest.raises(CheckpointError, match=f"^cannot read {re.escape(str(path))}: {place} is a pickle.*safetensors"):
        checkpoint.load(path)
    assert not touched.exists()


def test_unpickling_a_canary_touches_its_file(tmp_path):
    """So the test above would notice a pickle that is run."""
    pickle.loads(pickle.dumps({"weights": Canary(tmp_path / "touched")}))
    assert (tmp_path / "touched").exists()


def test_a_file_by_paddle_is_refused_as_a_pickle(tmp_path):
    import paddle

    path = tmp_path / "model.pdparams"
    paddle.save({"weight": paddle.zeros([3])}, str(path))
    with pytest.raises(CheckpointError, match=r"it is a pickle.*safetensors"):
        checkpoint.load(path)
