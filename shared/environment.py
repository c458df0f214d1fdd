"""The environment of a result, which every report records, and the number of threads that frameworks use."""

import hashlib
import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    "NPROC",  # JAX
    "RAYON_NUM_THREADS",  # the package tokenizers
)

# For processes that share the cores: idle OpenMP threads sleep instead of spinning on a core that another one needs. It
# makes short calls of PyTorch almost twice as slow, and those of JAX not at all, so a benchmark must not set it.
SLEEPING_THREADS = MappingProxyType({"OMP_WAIT_POLICY": "PASSIVE"})

# For processes that share a GPU: JAX would reserve three quarters of its memory, and leave too little to the others.
SHARED_GPU = MappingProxyType({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})

_PROCESSORS = Path("/proc/cpuinfo")
# Instructions that decide how fast models are, as Linux names them; the last three are ARM's.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16")
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}

_QUIET = {"GLOG_minloglevel": "1"}  # Paddle logs only warnings and errors
_SET_BY_THREADPOOLCTL = {"KMP_DUPLICATE_LIB_OK"}  # at its import; it changes no speed

# Environment variables that change a framework's results or speed.
_SWITCH = re.compile(
    r"(XLA|JAX|(PY)?TORCH[A-Z]*|ATEN|NPY|FLAGS|OMP|KMP|GOMP|MKL|DNNL|ONEDNN|OPENBLAS|CUBLAS|CUDNN|MALLOC|CT2)_\w+"
    "|TOKENIZERS_PARALLELISM|NVIDIA_TF32_OVERRIDE|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|GLIBC_TUNABLES|LD_PRELOAD"
)

PACKAGES = (
    *("triglot", "numpy", "scipy", "torch", "paddlepaddle", "jax", "jaxlib", "flax", "optax"),
    # These run originals and peers.
    *("transformers", "sentence-transformers", "tokenizers"),
    *("onnx", "onnxscript", "onnxruntime", "openvino", "ctranslate2"),
)


def environment() -> dict[str, Any]:
    """Return the Python version, the machine, the package versions and the variables that change results or speed.

    The version of a package that is not installed is None.
    """
    names = instructions()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": None if names is None else ", ".join(names) or "none known to Triglot",
        "cores": cores(),
        "packages": {name: version(name) for name in PACKAGES},
        "variables": variables(),
    }


def version(package: str) -> str | None:
    """Return the version of a package, or of its build for GPUs, such as paddlepaddle-gpu; None: not installed."""
    for name in (package, f"{package}-gpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def hash_of_code(modules: Iterable[ModuleType]) -> str:
    """Return a hash of the source of packages and of single modules.

    A result is reused only if the code that it depends on has this hash.
    """
    digest = hashlib.sha256()
    for module in modules:
        folders = map(Path, getattr(module, "__path__", ()))
        sources = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
        for path in sources or [Path(str(module.__file__))]:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def variables() -> dict[str, str]:
    """Return the environment variables that change results or speed, except those for threads and caches."""
    set_by_triglot = {*THREAD_VARIABLES, *_QUIET, *_SET_BY_THREADPOOLCTL}
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _SWITCH.fullmatch(name) and name not in set_by_triglot and not name.endswith("_DIR")
    }


def cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads that this process should use: OMP_NUM_THREADS, or one per core."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) else cores()


def limit_threads(number: int | None) -> None:
    """Set the thread count of frameworks imported from now on. None means OMP_NUM_THREADS, or one per core."""
    os.environ.update(thread_settings(number or threads()))


def thread_settings(number: int) -> dict[str, str]:
    """Return the environment variables that set the thread count of frameworks; set them before their import."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(number)), **_QUIET}


def instructions(information: Path = _PROCESSORS) -> list[str] | None:
    """Return the vector and matrix instructions that all processors have; None if the system does not say.

    ``information``: where Linux describes the processors.
    """
    features = _values(information, "flags", "Features")  # on x86, and on ARM
    if not features:
        return None
    return [name for name in _INSTRUCTIONS if all(name in each.split() for each in features)]


def why_bfloat16_is_slow(information: Path = _PROCESSORS) -> str | None:
    """Return why bfloat16 is slower than float32 on this processor; None if no reason is known.

    ``information``: where Linux describes the processors.
    """
    names = instructions(information)
    if names is None:
        return None
    if _BFLOAT16.isdisjoint(names):
        return "this processor has no bfloat16 instructions, and emulating them is slow"
    # Intel's processors with AVX512-FP16 leave bfloat16 to AMX, which a virtual machine may hide. On the one that was
    # measured, the other instructions for bfloat16 reach half the speed of those for float32 (docs/performance.md).
    is_intel = "GenuineIntel" in _values(information, "vendor_id")
    if is_intel and "avx512_fp16" in names and "amx_bf16" not in names:
        return "this Intel processor shows no AMX (a virtual machine may hide it), so bfloat16 is slower than float32"
    return None


def _values(information: Path, *names: str) -> list[str]:
    """Return the value of every line that has one of these names. Without such a file, the list is empty."""
    if not information.is_file():
        return []
    lines = (line.partition(":") for line in information.read_text().splitlines())
    return [value.strip() for name, _, value in lines if name.strip() in names]


def _processor() -> str:
    return next(iter(_values(_PROCESSORS, "model name")), platform.processor())
