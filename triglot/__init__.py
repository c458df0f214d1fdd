"""One Transformer in PyTorch, PaddlePaddle and JAX/Flax, with the same weights, proven to compute the same thing.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so a program loads only the parts of
Triglot that it needs, and no framework before it needs one.
"""

import lazy_loader

from triglot.shared import chosen_threads as _chosen_threads  # noqa: F401 (at once, before paddle is imported)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
