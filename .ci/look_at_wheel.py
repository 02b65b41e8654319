"""Looks at a wheel before it is released, and names all that is wrong with it.

    python .ci/look_at_wheel.py WHEEL [PATH ...]

The wheel must be tagged manylinux and abi3. Its extension must be stripped, and must name neither
one of the paths nor any folder that only the machine has on which it was built.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence

#: Folders of users, of Cargo's registry and of Rust's toolchains.
PRIVATE = (rb"/home/", rb"/root/", rb"/Users/", rb"\.cargo/", rb"registry/src/", rb"\.rustup/")


def sections(elf: bytes) -> list[str]:
    """Names of the sections of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<3H", elf, 0x3A)
    rows = [struct.unpack_from("<2I4Q", elf, table + i * size) for i in range(count)]
    start = rows[names][4]
    return [elf[start + row[0] : elf.index(b"\0", start + row[0])].decode() for row in rows]


def faults(path: str, private: Sequence[str] = ()) -> Iterator[str]:
    """What is wrong with a wheel."""
    if not re.search(r"-cp3\d+-abi3-manylinux[\w.]+\.whl$", path):
        yield f"{path}: not tagged abi3 and manylinux"
    with zipfile.ZipFile(path) as wheel:
        extensions = [name for name in wheel.namelist() if name.endswith(".so")]
        if len(extensions) != 1:
            yield f"{path}: {len(extensions)} extensions, wants 1"
        for name in extensions:
            elf = wheel.read(name)
            kept = [s for s in sections(elf) if s == ".symtab" or s.startswith(".debug")]
            if kept:
                yield f"{name}: not stripped of {', '.join(kept)}"
            words = [*PRIVATE, *(re.escape(p.rstrip("/")).encode() + b"/" for p in private if p)]
            found = re.findall(rb"[ -~]*(?:" + b"|".join(words) + rb")[ -~]*", elf)
            for text in sorted(set(found))[:5]:
                yield f"{name}: names {text[:120].decode()!r}"


def main() -> int:
    """Prints what is wrong; 1 if anything is."""
    found = list(faults(sys.argv[1], sys.argv[2:]))
    print("\n".join(found) or f"{sys.argv[1]}: manylinux, stripped, no path of this machine")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
