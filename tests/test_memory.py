"""``shared/memory.py``: a process reuses the memory that it frees."""

import importlib
import os
import platform
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

import triglot
from triglot import impls
from triglot.shared import memory

LIBRARY, VERSION = platform.libc_ver()
pytestmark = pytest.mark.skipif(
    LIBRARY != "glibc" or tuple(map(int, VERSION.split("."))) < (2, 36),
    reason="needs a glibc that can keep 40 MB: 2.36 or newer",
)

FAULTS_OF_CALLS = """
from concurrent.futures import ThreadPoolExecutor
from resource import RUSAGE_SELF, getrusage
import numpy as np
import triglot
{before}
pool = ThreadPoolExecutor(1)
faults = [getrusage(RUSAGE_SELF).ru_minflt]
for _ in range(9):
    {call}
    faults.append(getrusage(RUSAGE_SELF).ru_minflt)
print(np.median(np.diff(faults)))
"""
NEW_ARRAY = "np.ones(5 * 2**20)"  # 40 MB, which glibc never keeps by default
IN_A_THREAD = "pool.submit(np.ones, 20 * 2**20).result()"  # 168 MB, more than the heap of a thread
MORE_IN_A_THREAD = "pool.submit(np.ones, 80 * 2**20).result()"  # 671 MB, more than keep_freed_memory keeps
# The intermediate result takes 81 MB. The vectors exist before the calls, and the result is one number: calls of JAX
# that make arrays of 35 pages need up to ten of them until the heap has room for each.
PRODUCT = "import jax; vectors = jax.numpy.ones((4500, 8)); product = jax.jit(lambda x: ((x @ x.T) @ x).sum())"
IN_JAX = "product(vectors).block_until_ready()"

# Pages per call: at most 5 if memory is kept, at least 10 if not, because the smallest array has 20 large pages.
KEPT, RETURNED = 5, 10


def faults(before: str, call: str = NEW_ARRAY, **variables: str) -> float:
    """Return the median number of pages that the system provides per call, in a new process that has run ``before``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", FAULTS_OF_CALLS.format(before=before, call=call)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=own | variables).stdout)


def build(mode: str, framework: str = "torch") -> str:
    """Return the code that builds a model."""
    return f"triglot.build({framework!r}, triglot.initialize('bert-base-tiny'), mode={mode!r})"


@pytest.mark.long(mode="jit")
@pytest.mark.parametrize("mode", ["jit", "compiled"])
def test_a_fast_mode_uses_freed_memory_again(mode: str):
    assert faults(build(mode)) <= KEPT


def test_eager_mode_leaves_the_allocator_as_it_is():
    assert faults(build("eager")) >= RETURNED


@pytest.mark.long(settings={"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"})
@pytest.mark.parametrize(
    "settings",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}],
    ids=str,
)
def test_the_settings_of_the_user_win(settings: dict[str, str]):
    assert faults(build("compiled"), **settings) >= RETURNED


@pytest.mark.long
def test_settings_of_other_things_change_nothing():
    assert faults(build("compiled"), MALLOC_ARENA_MAX="2", GLIBC_TUNABLES="glibc.malloc.tcache_count=0") <= KEPT


@pytest.mark.long
@pytest.mark.parametrize("call", [IN_A_THREAD, MORE_IN_A_THREAD])
def test_jit_in_jax_uses_memory_again_that_another_thread_freed(call: str):
    assert faults(f"{build('jit', 'jax')}; {build('compiled')}", call) <= KEPT  # the second build undoes nothing


@pytest.mark.long(mode="compiled")
@pytest.mark.parametrize(("mode", "expected"), [("jit", True), ("compiled", False)])
def test_jit_in_jax_uses_memory_again_that_a_thread_of_jax_itself_freed(mode: str, expected: bool):
    assert (faults(f"{build(mode, 'jax')}; {PRODUCT}", IN_JAX) <= KEPT) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "name", "settings"),
    [
        ("compiled", "jax", {}),
        ("jit", "torch", {}),
        ("jit", "paddle", {}),
        ("jit", "jax", {"MALLOC_ARENA_MAX": "100"}),
        ("jit", "jax", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=100"}),
    ],
)
def test_other_threads_keep_their_own_heaps_otherwise(mode: str, name: str, settings: dict[str, str]):
    assert faults(build(mode, name), IN_A_THREAD, **settings) >= RETURNED


@pytest.mark.long
def test_jit_in_jax_keeps_everything_in_the_one_heap_that_the_user_chose():
    assert faults(build("jit", "jax"), MORE_IN_A_THREAD, MALLOC_ARENA_MAX="1") <= KEPT


HUGE_PAGES = """
import triglot
checkpoint = triglot.initialize("minilm")
triglot.build({name!r}, triglot.initialize("bert-base-tiny"))  # imports the framework
{use}
huge = 0
for line in open("/proc/self/smaps"):
    if line.startswith("Rss:"):
        used = 1024 * int(line.split()[1])
    if line.startswith("VmFlags:") and "hg" in line.split():
        huge += used
layers = [tensor for name, tensor in checkpoint.tensors.items() if ".layers." in name and tensor.ndim == 2]
print(huge, sum(tensor.nbytes for tensor in layers))
"""
INFERENCE = "triglot.build({name!r}, checkpoint, mode='compiled').encode([[5, 6]])"
TRAINING = """
import numpy as np
from triglot import Plan
from triglot.shared.inputs import random_batch, taught
model = triglot.build({name!r}, checkpoint, mode="jit")
model.begin_training(Plan())
batch = random_batch(checkpoint.config, [2], np.random.default_rng(0))
model.training_step(taught(checkpoint.config, batch, np.zeros((1, 2, 384), np.float32)))
"""


@pytest.mark.skipif(
    not memory._provides_huge_pages_on_request() or not memory._can_reserve(),
    reason="Triglot asks for no huge pages here",
)
@pytest.mark.long(use=TRAINING)
@pytest.mark.parametrize(
    ("name", "use", "copies"),
    [
        # The kernels have copies of the layers' weights.
        pytest.param("torch", INFERENCE, 1, id="torch-inference"),
        pytest.param("paddle", INFERENCE, 1, id="paddle-inference"),
        # The gradients, and each of Adam's two moments, take as much memory as the weights.
        pytest.param("torch", TRAINING, 3, id="torch-training"),
        pytest.param("paddle", TRAINING, 3, id="paddle-training"),
        pytest.param("jax", TRAINING, 3, id="jax-training"),
    ],
)
def test_a_fast_mode_asks_for_huge_pages(name: str, use: str, copies: int):
    def bytes_of(**variables: str) -> list[int]:
        own = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
        command = [sys.executable, "-c", HUGE_PAGES.format(name=name, use=use.format(name=name))]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=own | variables)
        return [int(number) for number in done.stdout.split()]

    asked, layers = bytes_of()
    asked_when_off, _ = bytes_of(GLIBC_TUNABLES="glibc.malloc.hugetlb=0")  # turned off, as a user would
    # Some copies may fit into memory that was freed before.
    assert asked - asked_when_off > 0.9 * copies * layers


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Return a fake of glibc, on a system that provides huge pages on request, in a process without limits."""
    fake = MagicMock()
    fake.malloc.return_value = 4097
    (tmp_path / "enabled").write_text("always [madvise] never")
    (tmp_path / "overcommit").write_text("0\n")
    for name in list(os.environ):
        if name.startswith(("MALLOC_", "GLIBC_TUNABLES")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(memory, "_HUGE_PAGES", tmp_path / "enabled")
    monkeypatch.setattr(memory, "_OVERCOMMIT", tmp_path / "overcommit")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: fake)
    monkeypatch.setattr(memory, "keep_freed_memory", fake.keep_freed_memory)
    monkeypatch.setattr(memory.keep_freed_memory_of_threads, "cache_info", lambda: SimpleNamespace(currsize=0))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return fake


@pytest.mark.parametrize(
    ("content", "tunables"),
    [
        ("always [madvise] never", "glibc.malloc.hugetlb=0"),
        ("always [madvise] never", "glibc.malloc.trim_threshold=131072"),
        ("[always] madvise never", ""),
        ("always madvise [never]", ""),
        (None, ""),
    ],
)
def test_no_huge_pages_are_asked_for_if_the_system_or_the_user_decides(
    content: str | None, tunables: str, library: MagicMock, monkeypatch: pytest.MonkeyPatch
):
    memory._HUGE_PAGES.unlink()
    if content is not None:
        memory._HUGE_PAGES.write_text(content)
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    memory.ask_for_huge_pages()
    assert not library.mock_calls


def test_the_heap_is_extended_and_not_returned(library: MagicMock):
    memory.ask_for_huge_pages()
    size = 3 * 2**29
    heap = [call.malloc(size), call.mallopt(-4, 65536), call.mallopt(-1, 2**31 - 1)]
    pages = call.madvise(8192, size - 4096, 14)  # from 4,097 on: whole pages only
    assert library.mock_calls == [call.keep_freed_memory(), call.mallopt(-4, 0), *heap, pages, call.free(4097)]


def test_the_settings_of_one_heap_stay_as_they_are(library: MagicMock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory.keep_freed_memory_of_threads, "cache_info", lambda: SimpleNamespace(currsize=1))
    memory.ask_for_huge_pages()
    assert library.free.called
    assert not library.mallopt.called


def test_a_heap_that_cannot_be_extended_stays_as_it_is(library: MagicMock):
    library.malloc.return_value = 0
    memory.ask_for_huge_pages()
    heap = [call.mallopt(-4, 0), call.malloc(3 * 2**29), call.mallopt(-4, 65536)]
    assert library.mock_calls == [call.keep_freed_memory(), *heap]


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_a_heap_under_a_limit_is_not_extended(limited: int, library: MagicMock, monkeypatch: pytest.MonkeyPatch):
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY, limited: 2**40}
    monkeypatch.setattr(resource, "getrlimit", lambda name: (limits[name], resource.RLIM_INFINITY))
    memory.ask_for_huge_pages()
    assert not library.mock_calls


def test_a_heap_is_not_extended_if_the_system_promises_no_more_memory_than_it_has(library: MagicMock):
    memory._OVERCOMMIT.write_text("2\n")
    memory.ask_for_huge_pages()
    assert not library.mock_calls


def test_a_heap_is_not_extended_beyond_the_memory_of_the_system(library: MagicMock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory.mmap, "mmap", MagicMock(side_effect=OSError))
    memory.ask_for_huge_pages()
    assert not library.mock_calls


def test_another_thread_asks_for_no_huge_pages(library: MagicMock):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(memory.ask_for_huge_pages).result()
    assert not library.mock_calls


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["eager", "jit", "compiled"])
def test_what_build_makes_glibc_keep(framework: str, mode: str, device: str, monkeypatch: pytest.MonkeyPatch):
    checkpoint, asked = triglot.initialize("bert-base-tiny"), MagicMock()
    for name in ("keep_freed_memory", "keep_freed_memory_of_threads"):
        monkeypatch.setattr(impls, name, getattr(asked, name))
    monkeypatch.setattr(impls.importlib, "import_module", MagicMock())
    impls.build(framework, checkpoint, device=device, mode=mode)
    expected = []
    if device == "cpu" and mode != "eager":
        one_heap = [call.keep_freed_memory_of_threads()] if (framework, mode) == ("jax", "jit") else []
        expected = [call.keep_freed_memory(), *one_heap]
    assert asked.mock_calls == expected


@pytest.mark.parametrize("mode", ["eager", "jit", "compiled"])
def test_huge_pages_are_asked_for_after_the_weights_are_loaded(
    framework: str, mode: str, monkeypatch: pytest.MonkeyPatch
):
    backend, steps = importlib.import_module(f"triglot.impls.{impls.PACKAGES[framework]}.backend"), MagicMock()
    steps.load.side_effect = backend.weights.load
    monkeypatch.setattr(backend.weights, "load", steps.load)
    monkeypatch.setattr(backend, "ask_for_huge_pages", steps.ask)
    backend.Backend(triglot.initialize("bert-base-tiny"), "cpu", "float32", mode)
    names = [name for name, _, _ in steps.mock_calls]
    assert names == (["load"] if mode == "eager" else ["load", "ask"])


def test_paddle_converts_a_weight_only_when_it_copies_it(monkeypatch: pytest.MonkeyPatch):
    import paddle

    from triglot.impls.paddlepaddle import weights

    checkpoint, steps = triglot.initialize("bert-base-tiny"), MagicMock()
    steps.convert.side_effect = weights.np2paddle
    monkeypatch.setattr(weights, "np2paddle", steps.convert)
    steps.transformer.state_dict.return_value = dict.fromkeys(checkpoint.tensors, steps.parameter)
    weights.load(steps.transformer, checkpoint, paddle.float32)
    order = [name for name, _, _ in steps.mock_calls if name in ("convert", "parameter.set_value")]
    assert order == ["convert", "parameter.set_value"] * len(checkpoint.tensors)


@pytest.mark.parametrize(("kept", "returned"), [(0, True), (1, False)])
def test_memory_that_is_kept_on_purpose_is_not_returned(
    kept: int, returned: bool, library: MagicMock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(memory.keep_freed_memory, "cache_info", lambda: SimpleNamespace(currsize=kept))
    memory.return_freed_memory()
    assert library.malloc_trim.called == returned
