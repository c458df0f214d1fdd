"""The environment that a report records: variables, versions, and a hash of the code."""

import platform
from importlib import metadata
from types import ModuleType

import pytest

from triglot.shared.environment import (
    environment,
    hash_of_code,
    instructions,
    thread_settings,
    version,
    why_bfloat16_is_slow,
)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "XLA_FLAGS",
            "JAX_DEFAULT_MATMUL_PRECISION",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
            "TORCHINDUCTOR_MAX_AUTOTUNE",
        ),
        *(
            "PYTORCH_CUDA_ALLOC_CONF",
            "FLAGS_use_mkldnn",
            "OMP_PROC_BIND",
            "KMP_BLOCKTIME",
            "MKL_CBWR",
            "ONEDNN_MAX_CPU_ISA",
            "ATEN_CPU_CAPABILITY",
            "NPY_DISABLE_CPU_FEATURES",
        ),
        *(
            "CT2_USE_MKL",
            "NVIDIA_TF32_OVERRIDE",
            "CUDA_VISIBLE_DEVICES",
            "MALLOC_ARENA_MAX",
            "GLIBC_TUNABLES",
            "LD_PRELOAD",
        ),
    ],
)
def test_variables_that_change_a_framework_are_listed(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert environment()["variables"][name] == "1"


@pytest.mark.parametrize(
    "name", ["HOME", "MY_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", *thread_settings(1)]
)
def test_variables_that_change_nothing_or_that_triglot_sets_are_not_listed(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert name not in environment()["variables"]


AMX_IS_HIDDEN = "avx512f avx512_bf16 avx512_fp16"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("flags\t\t: fpu avx2 avx512f\nflags\t\t: fpu avx2 avx512f", "no bfloat16 instructions"),
        ("model name\t: X\nflags\t\t: fpu avx512f avx512_bf16\nflags\t\t: fpu avx512_bf16", None),
        ("flags\t\t: fpu amx_bf16", None),
        ("flags\t\t: fpu avx512_bf16\nflags\t\t: fpu", "no bfloat16 instructions"),  # cores of two kinds
        (f"vendor_id\t: GenuineIntel\nflags\t\t: {AMX_IS_HIDDEN}", "shows no AMX"),
        (f"vendor_id\t: GenuineIntel\nflags\t\t: {AMX_IS_HIDDEN} amx_bf16", None),
        (f"vendor_id\t: AuthenticAMD\nflags\t\t: {AMX_IS_HIDDEN}", None),
        ("vendor_id\t: GenuineIntel\nflags\t\t: avx512f avx512_bf16", None),  # from before AMX
        ("Features\t: fp asimd bf16", None),  # ARM
        ("Features\t: fp asimd", "no bfloat16 instructions"),
        ("processor\t: 0", None),
        (None, None),  # not Linux
    ],
)
def test_slow_bfloat16_is_detected(lines, reason, tmp_path):
    information = tmp_path / "cpuinfo"
    if lines is not None:
        information.write_text(lines + "\n")
    found = why_bfloat16_is_slow(information)
    assert (found is None) if reason is None else (reason in (found or ""))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch says it only for x86")
def test_pytorch_finds_the_same_instructions_for_bfloat16():
    import torch

    reason, found = why_bfloat16_is_slow() or "", torch.cpu.get_capabilities()
    assert ("no bfloat16 instructions" in reason) != (found["avx512_bf16"] or found["amx_bf16"])
    hides_amx = "Intel" in found["cpu_name"] and found["avx512_fp16"] and not found["amx_bf16"]
    assert ("shows no AMX" in reason) == hides_amx


def test_instructions_that_all_processors_have_are_listed(tmp_path):
    information = tmp_path / "cpuinfo"
    information.write_text("flags\t: sse avx2 avx512f\nflags\t: sse avx512f avx512_bf16 avx2\n")
    assert instructions(information) == ["avx2", "avx512f"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch names these for x86")
def test_pytorch_finds_the_same_vector_instructions():
    import torch

    assert ("avx512f" in environment()["instructions"]) == torch.cpu._is_avx512_supported()
    assert ("avx2" in environment()["instructions"]) == torch.cpu._is_avx2_supported()


def test_the_build_for_gpus_counts_as_the_package(monkeypatch):
    def version_of(name):
        if name != "paddlepaddle-gpu":
            raise metadata.PackageNotFoundError(name)
        return "3.3.1"

    monkeypatch.setattr(metadata, "version", version_of)
    assert version("paddlepaddle") == "3.3.1"
    assert version("torch") is None


@pytest.mark.parametrize("changed", ["package/inner/deep.py", "module.py"])
def test_the_hash_of_code_covers_packages_and_single_modules(changed, tmp_path):
    for name in ("package/__init__.py", "package/inner/deep.py", "module.py", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    package, module = ModuleType("package"), ModuleType("module")
    package.__path__, module.__file__ = [str(tmp_path / "package")], str(tmp_path / "module.py")
    before = hash_of_code([package, module])
    (tmp_path / "other.py").write_text("x = 2\n")
    assert hash_of_code([package, module]) == before
    (tmp_path / changed).write_text("x = 2\n")
    assert hash_of_code([package, module]) != before
