"""The choices that users have, each declared once. The command line and the library both read them from here."""

FRAMEWORKS = ("torch", "paddle", "jax")
DEVICES = ("cpu", "cuda")
MODES = ("eager", "jit", "compiled")
DTYPES = ("float32", "float64", "bfloat16", "float16")  # what models compute in

# The workloads of ``Model.prepare`` that compute gradients.
WITH_GRADIENTS = ("forward+backward", "training")
