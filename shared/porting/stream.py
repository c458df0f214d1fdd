"""The tensors of a checkpoint on their way to a file: read once, one at a time."""

from collections.abc import Callable, Mapping

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import check_finite_tensor
from triglot.shared.checkpoint.checksums import LazyTensors, with_checksum, without_verifying
from triglot.shared.checkpoint.manifest import TensorRecord
from triglot.shared.errors import CheckpointError, PortingError

OnBytes = Callable[[int, int, str], None]  # bytes read, bytes in total, name of the last tensor


class Stream(LazyTensors):
    """Tensors that are checked and recorded when they are first read. ``records`` has those that were read."""

    def __init__(self, tensors: Mapping[str, Array], on_bytes: OnBytes | None, *, allow_nonfinite: bool) -> None:
        self.unread = without_verifying(tensors)
        self.records: dict[str, TensorRecord] = {}
        self._tensors = tensors
        self._on_bytes = on_bytes
        self._allow_nonfinite = allow_nonfinite
        self._read, self._total = 0, sum(tensor.nbytes for tensor in self.unread.values())

    def read_all(self) -> None:
        """Check and record all tensors."""
        for name in self:
            self.with_checksum(name)

    def with_checksum(self, name: str) -> tuple[Array, str]:
        """See ``LazyTensors.with_checksum``.

        Raises:
            PortingError: the tensor holds NaN or infinity.
        """
        tensor, checksum = with_checksum(self._tensors, name)
        if name not in self.records:
            if not self._allow_nonfinite:
                try:
                    check_finite_tensor(name, tensor, "float64")
                except CheckpointError as error:
                    raise PortingError(f"{error}, or keep them (allow_nonfinite=True, or --allow-nonfinite)") from error
            self.records[name] = TensorRecord.of(tensor, checksum)
            self._read += tensor.nbytes
            if self._on_bytes:
                self._on_bytes(self._read, self._total, name)
        return tensor, checksum

    def __getitem__(self, name: str) -> Array:
        return self.with_checksum(name)[0]
