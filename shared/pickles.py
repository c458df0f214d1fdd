"""Recognise pickles. Triglot refuses them, because unpickling a file runs the program in it.

One kind is read without running it: the pickle inside the ``.pt`` state dict of an article, which lists the tensors.
``porting/containers/torch_pickle.py`` interprets that list and cannot call anything.
"""

import re

WHY = "Triglot does not unpickle files, because a pickle can run any code; save the model as safetensors instead"
START = 1024  # bytes that ``is_pickle`` needs

# Protocols 2 to 5 begin with their number. 0 and 1 begin with a container, or with the name of a function to call.
# A safetensors file can look like protocols 2 to 5: it begins with the length of its header, in 8 bytes, and a brace.
_PICKLE = re.compile(rb"\x80[\x02-\x05](?!...\0\0\0\{)|\([dl]p\d+\n|[\]}]q\x00|c[\w.]+\n[\w.]+\n", re.DOTALL)


def is_pickle(start: bytes) -> bool:
    """Return whether a file that begins with ``start`` is a pickle by ``pickle`` itself, PyTorch or PaddlePaddle."""
    if start[:4] == b"PK\x03\x04":  # torch.save writes a zip archive whose first member is NAME/data.pkl
        length = int.from_bytes(start[26:28], "little")
        return start[30 : 30 + length].endswith(b".pkl")
    return _PICKLE.match(start) is not None
