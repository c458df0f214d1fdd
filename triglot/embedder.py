"""Text to vectors: a model with its tokenizer, which makes one vector of each text."""

from pathlib import Path

from triglot import api, arguments, impls, models
from triglot.impls.text_encoder import BATCH_TOKENS, TextEncoder
from triglot.shared.checkpoint import Checkpoint


class Embedder(TextEncoder):
    """Turns texts into vectors, as the library sentence-transformers does with the same model.

    ``model``: a folder of sentence-transformers, a checkpoint, or the name of a recipe with trained weights. It needs
    the head "sentence_embedding"; ``pooling`` ("mean", "cls" or "max") adds that head to an encoder without it.
    ``tokenizer``: a file ``tokenizer.json``; None: the one in the folder of the model. ``framework`` None: the first
    that is installed. ``mode``, ``dtype`` and ``device`` are those of ``triglot.build``. ``batch_tokens``: the most
    tokens in a batch, padding included.

    Texts of similar length share a batch. Texts longer than the model allows are truncated. A text without any token,
    such as an empty text without special tokens, becomes a vector of zeros. As ``triglot.build``, it warns if bfloat16
    is slow on this processor.

    Raises:
        ModelNotFoundError: ``model`` does not exist.
        PortingError: the model cannot be read.
        InputError: the model has no tokenizer or no sentence embedding, or has one already that ``pooling`` would
            replace; or the package ``tokenizers`` is not installed.
        FrameworkError: the framework is not installed, or does not support the device, dtype or mode.
        ConfigError: ``batch_tokens`` is not a whole number of at least 1, or ``pooling`` is unknown.
    """

    def __init__(
        self,
        model: str | Path | Checkpoint,
        *,
        framework: str | None = None,
        mode: str = "compiled",
        dtype: str = "float32",
        device: str = "cpu",
        pooling: str | None = None,
        tokenizer: str | Path | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        arguments.whole_number("batch_tokens", batch_tokens, 1)
        checkpoint = models.sentence_encoder(model, pooling)
        framework = framework or api.first_framework()
        super().__init__(
            checkpoint,
            models.tokenizer_file(checkpoint, tokenizer),
            framework,
            mode=mode,
            dtype=dtype,
            device=device,
            batch_tokens=batch_tokens,
        )
        impls.warn_if_slow(framework, device, dtype, mode)
