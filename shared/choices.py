"""The choices that users have, each declared once. The command line and the library both read them from here."""

FRAMEWORKS = ("torch", "paddle", "jax")
DEVICES = ("cpu", "cuda")
MODES = ("eager", "jit", "compiled")
DTYPES = ("float32", "float64", "bfloat16", "float16")  # what models compute in

# The kinds of check of a parity run.
CHECKS = ("masks", "steps", "forward", "invariants", "generation", "gradients", "training")
CHECKS_ON_DEMAND = ("gradients", "training")  # only needed by users who train; JAX takes long to compile them

# The workloads of ``Model.prepare`` that compute gradients.
WITH_GRADIENTS = ("forward+backward", "training")
