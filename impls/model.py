"""A model in any framework: NumPy arrays in, NumPy arrays out. What belongs to a framework is in its ``backend.py``.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from triglot.shared import inputs
from triglot.shared.arrays import Array, Bools
from triglot.shared.checkpoint.training_state import check_beginning
from triglot.shared.errors import TrainingError
from triglot.shared.inputs import Batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe
from triglot.shared.training.dropout_masks import check_dropout_masks
from triglot.shared.training.plan import Moments, Outcome, Plan


class Model:
    """The model of a checkpoint in one framework, as ``triglot.build`` returns it.

    Arguments are never changed, and results belong to the caller. ``backend`` is an instance of a framework's class
    ``Backend``; ``tests/models/test_parallel_code.py`` ensures that all of these classes have the same methods.
    """

    def __init__(self, backend: Any) -> None:
        self.config: ModelConfig = backend.config
        self.backend = backend
        self._trainer: Any = None

    @property
    def transformer(self) -> Any:
        """The framework's own module, whose layers can be used without this facade."""
        return self.backend.transformer

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> Array:
        """Return the output of the encoder's last layer, (B, S, D), zero at padding tokens.

        ``token_ids``: integers (B, S), or vectors (B, S, D) for a model without a vocabulary. ``valid``: bool
        (B, S), True for real tokens; None: all are real. ``segment_ids``, ``task_ids``: integers (B, S); None: 0.

        Raises:
            InputError: an input does not fit the model.
        """
        batch = inputs.encoder_batch(self.config, token_ids, valid, segment_ids, task_ids)
        with self.backend.computing("forward"):
            return self.to_numpy(self.backend.encode(self._tensors(batch.arrays())))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, Array]:
        """Return the output of each head by name. Arguments as in ``encode``.

        "pooler": (B, D). "masked_lm": scores over the vocabulary, (B, S, V), zero at padding tokens.
        "next_sentence": (B, 2), the scores of "the second segment follows the first" and "it does not".
        "sequence_classifier": (B, classes). "token_classifier": (B, S, classes), zero at padding tokens.
        "replaced_token": (B, S), high for tokens that a generator replaced, zero at padding tokens.
        "sentence_embedding": (B, E), one vector for each row.

        Raises:
            InputError: an input does not fit the model, or the heads need a target.
        """
        return self._heads(inputs.heads_batch(self.config, token_ids, valid, segment_ids, task_ids))

    def forward(self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None) -> Array:
        """Return the scores of an encoder-decoder for the token after each target token, (B, T, target vocabulary).

        They are logits or log-probabilities, depending on the configuration, and zero at padding tokens. A model
        without vocabularies returns the output of the decoder's last layer, (B, T, D), zero at padding tokens.
        ``source_ids`` (B, S), ``target_ids`` (B, T): integers, or vectors (B, S, D) and (B, T, D) for a model without
        vocabularies. ``source_valid``, ``target_valid``: bool, True for real tokens; None: all are real but the pad id.

        Raises:
            InputError: an input does not fit the model, or the model has no decoder.
        """
        batch = inputs.pair_batch(self.config, source_ids, target_ids, source_valid, target_valid)
        with self.backend.computing("forward"):
            output, heads = self.backend.run(self._tensors(batch.arrays()))
            return self.to_numpy(next(iter(heads.values()), output))

    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> Array:
        """Generate target ids greedily, int32 (B, T): the start id, each likeliest token, pad ids after the end id.

        ``source_ids``: integers (B, S), padded with the pad id. ``max_length``: T; None: the maximum of the model.
        ``cached``: use a key-value cache; False: recompute the whole target for each token, as article 000 does.

        Raises:
            InputError: an input does not fit the model, or the model has no decoder, no vocabulary, or no start, end or
                pad id.
        """
        batch, length = inputs.generation_batch(self.config, source_ids, max_length)
        with self.backend.computing("generation"):
            tensors = self._tensors({"source": batch.source, "valid": batch.valid})
            target = self.backend.generator.generate(tensors["source"], tensors["valid"], length, cached)
            return self.to_numpy(target).astype(np.int32)

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        allowed: Any = None,
        key_valid: Any = None,
        bias: Any = None,
        batch_first: bool = True,
    ) -> tuple[Array, Array]:
        """Return the output of a model that is attention alone, (B, T, D), and its weights, averaged over heads.

        ``query`` (B, T, D), ``key`` and ``value`` (B, S, D): float; with ``batch_first`` False they and the output
        have the length first (article 004). ``key_valid``: bool (B, S), True for real keys. ``allowed``: bool, True =
        may attend, and ``bias``: float, added to the scores, where minus infinity forbids: (T, S), (B * H, T, S), or
        (B, H, T, S) where B and H may be 1. None: all keys may be attended to, and nothing is added. The weights are
        (B, T, S).

        Raises:
            InputError: an input does not fit the model, or the model is more than attention.
        """
        batch = inputs.attention_batch(self.config, query, key, value, allowed, key_valid, bias, batch_first)
        with self.backend.computing("forward"):
            output, averaged = map(self.to_numpy, self.backend.run(self._tensors(batch.arrays())))
            return output if batch_first else output.swapaxes(0, 1), averaged

    def loss_and_gradients(
        self, batch: Batch, dropout_masks: Mapping[str, Array] | None = None
    ) -> tuple[float, dict[str, Array]]:
        """Return the loss of a batch, and its gradients by canonical name.

        For an encoder-decoder the loss is the cross-entropy, the mean over the labels that count; see
        ``inputs.teacher_forcing``. For an encoder it is the mean squared distance to the vectors of a teacher, over
        real tokens; see ``inputs.taught``. Mode "compiled" computes both as "eager" does. ``dropout_masks``: see
        ``training/dropout_masks.py``; None: nothing is dropped.

        Raises:
            InputError: the batch does not fit the model, or has no labels or no teacher.
            TrainingError: the model has no loss.
        """
        batch = inputs.to_train(self.config, batch)
        with self.backend.computing("forward+backward"):
            loss, gradients = self.backend.gradients(*self._training_tensors(batch, dropout_masks))
            return float(self.to_numpy(loss)), self.to_canonical(gradients)

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None:
        """Prepare for ``training_step``. To resume a training run, pass the ``moments`` saved with this model.

        Raises:
            TrainingError: the model has no loss, or cannot be trained in its mode or dtype, or the moments are those
                of another model.
            FrameworkError: the reference does not train.
        """
        with self.backend.computing("training"):
            check_beginning(self.config, self.backend.dtype_name, self.backend.mode, moments)
            self._trainer = self.backend.trainer(plan, moments)

    def training_step(self, batch: Batch, dropout_masks: Mapping[str, Array] | None = None) -> Outcome:
        """Change the weights by one step of Adam on a batch. Arguments as in ``loss_and_gradients``.

        Raises:
            InputError: the batch does not fit the model, or has no labels or no teacher.
            TrainingError: ``begin_training`` was not called.
            FrameworkError: the reference does not train.
        """
        with self.backend.computing("training"):
            batch = inputs.to_train(self.config, batch)
            return self._begun_trainer().step(*self._training_tensors(batch, dropout_masks))

    def moments(self) -> Moments:
        """Return the moments of Adam, to resume the training run later.

        Raises:
            TrainingError: ``begin_training`` was not called.
            FrameworkError: the reference does not train.
        """
        with self.backend.computing("training"):
            return self._begun_trainer().moments()

    def masks(self, valid: Bools) -> dict[str, Bools]:
        """Return the masks that the framework builds from ``valid``, bool (B, S): see ``shared/model/masks.py``.

        Raises:
            InputError: ``valid`` is something else.
        """
        valid = inputs.check_valid(valid)
        with self.backend.computing("forward"):
            return self._arrays(self.backend.masks(self.backend.to_tensor(valid)))

    def trace(self, batch: Batch, replacements: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Return every named value of a forward pass. ``replacements`` take the place of computed values."""
        with self.backend.computing("trace"):
            return self._arrays(self.backend.trace(self._tensors(batch.arrays()), self._tensors(replacements or {})))

    def run(self, batch: Batch, probe: Probe) -> tuple[Any, Any]:
        """Run the model eagerly, in any mode, and show its values to ``probe``; see ``execution.run``."""
        with self.backend.computing("trace"):
            return self.backend.run_eagerly(self._tensors(batch.arrays()), probe)

    def prepare(self, workload: str, batch: Batch) -> Callable[[], Any]:
        """Return a call to be timed. Its result stays in the framework, and may still be computed; see ``wait``.

        ``workload``: "forward" (output and heads), "forward+backward" (the loss, and its gradients by name),
        "training" (a step of the training run that has begun: its ``Outcome``), or "generation" (a target of the
        greatest length, with a key-value cache). Nothing is dropped. The batch has to fit the model, and is handed over
        now.

        Raises:
            TrainingError: ``begin_training`` was not called.
            FrameworkError: the framework cannot compute the workload.
        """
        with self.backend.computing(workload):
            tensors = self._tensors(batch.arrays())
        compute: Callable[[], Any] = partial(self.backend.run, tensors)
        if workload == "generation":
            source, length = (tensors["source"], tensors["valid"]), self.config.target_max_length
            compute = partial(self.backend.generator.generate, *source, length, cached=True)
        if workload == "forward+backward":
            compute = partial(self.backend.gradients, tensors, {})
        if workload == "training":
            compute = partial(self._begun_trainer().step, tensors, {})

        def call() -> Any:
            with self.backend.computing(workload):
                return compute()

        return call

    def wait(self, result: Any) -> None:
        """Wait until the result of a prepared call is computed: JAX, and every GPU, continues after the call."""
        self.backend.wait(result)

    def to_numpy(self, tensor: Any) -> Array:
        """Return a tensor of a prepared call's result as an array."""
        return self.backend.to_numpy(tensor)

    def to_canonical(self, tensors: Mapping[str, Any]) -> dict[str, Array]:
        """Return one tensor for each parameter, such as gradients, by canonical name and in canonical layout."""
        return self.backend.to_canonical(tensors)

    def weights(self) -> dict[str, Array]:
        """Return the weights by canonical name, read back from the framework."""
        return self.backend.weights()

    def _heads(self, batch: Batch) -> dict[str, Array]:
        with self.backend.computing("forward"):
            _, heads = self.backend.run(self._tensors(batch.arrays()))
            return self._arrays(heads)

    def _begun_trainer(self) -> Any:
        if self._trainer is None:
            raise TrainingError("no training run has begun; call begin_training first")
        return self._trainer

    def _training_tensors(
        self, batch: Batch, dropout_masks: Mapping[str, Array] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        masks = check_dropout_masks(self.config, batch, dropout_masks or {})
        return self._tensors(batch.arrays()), self._tensors(masks)

    def _tensors(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        fitting = inputs.fit_dtype(arrays, self.backend.dtype_name)
        return {name: self.backend.to_tensor(array) for name, array in fitting.items()}

    def _arrays(self, tensors: Mapping[str, Any]) -> dict[str, Array]:
        return {name: self.to_numpy(tensor) for name, tensor in tensors.items()}
