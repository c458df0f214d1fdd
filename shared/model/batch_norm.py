"""What every BatchNorm1d refuses, in the same words: the frameworks disagree, and some divide by zero in silence."""

from triglot.shared.errors import InputError


def check_channels(shape: tuple[int, ...], channels: int, *, training: bool) -> None:
    """Refuse an input of another shape than (B, C) or (B, C, L), and a batch that has no variance to learn from.

    Raises:
        InputError: the number of dimensions or of channels is wrong; or in training there is no second value per
            channel, so that the unbiased variance divides by zero.
    """
    if len(shape) not in (2, 3) or shape[1] != channels:
        raise InputError(f"the batch norm got an input {shape}; expected (B, {channels}) or (B, {channels}, L)")
    values = shape[0] * (shape[2] if len(shape) == 3 else 1)
    if training and values < 2:
        raise InputError(
            f"the batch norm got an input {shape} with {values} value per channel; expected at least 2 in training; "
            "give a larger batch, or switch to inference"
        )
