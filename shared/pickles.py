"""Pickles are never run: a pickle is a program, and to unpickle it is to run it. The first bytes say what is one.

They are refused wherever they turn up, but for the state dicts of the articles' dialects: a ``.pt`` file is a zip
archive with a pickle that lists its tensors. ``porting/torch_pickle.py`` interprets that list, and can call nothing.
"""

import re

WHY = "pickles are never read, because they can run any code: save the model as safetensors where it was made"
START = 1024  # how many bytes are enough

# Protocols 2 to 5 begin with their number; 0 and 1 with a remembered container, or the name of what is to be called.
# A safetensors file can begin like the former: with the length of its header, in 8 bytes, and a brace.
_PICKLE = re.compile(rb"\x80[\x02-\x05](?!...\0\0\0\{)|\([dl]p\d+\n|[\]}]q\x00|c[\w.]+\n[\w.]+\n", re.DOTALL)


def is_pickle(start: bytes) -> bool:
    """Whether the file that begins with ``start`` is one: by ``pickle`` itself, by PyTorch or by PaddlePaddle."""
    if start[:4] == b"PK\x03\x04":  # torch.save writes a zip archive whose first member is NAME/data.pkl
        length = int.from_bytes(start[26:28], "little")
        return start[30 : 30 + length].endswith(b".pkl")
    return _PICKLE.match(start) is not None
