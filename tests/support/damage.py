"""Files that are damaged."""

from __future__ import annotations

import random


def damaged(data: bytes, random_: random.Random) -> bytes:
    """Some bytes changed, dropped or doubled."""
    out = bytearray(data)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(out))
        match random_.randrange(3):
            case 0:
                out[at] = random_.randrange(256)
            case 1:
                del out[at : at + random_.randint(1, 9)]
            case _:
                out[at:at] = out[at : at + random_.randint(1, 9)]
        if not out:
            break
    return bytes(out)
