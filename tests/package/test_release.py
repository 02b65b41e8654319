"""What looks at a wheel before its release finds what may not be in it."""

from __future__ import annotations

import importlib.util
import struct
import zipfile
from pathlib import Path

import pytest
from folders import ROOT

import loadmaster.fast as fast

SPEC = importlib.util.spec_from_file_location("look", ROOT / ".ci" / "look_at_wheel.py")
look = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(look)

TAGS = "cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64"


def elf(sections: list[str], data: bytes = b"") -> bytes:
    """A file of sections without content, and some data."""
    names = b"\0".join(s.encode() for s in sections) + b"\0"
    at = 0x40 + len(data) + len(names)
    rows, offset = b"", 0
    for i, section in enumerate(sections):
        start = 0x40 + len(data) if i == 0 else 0
        rows += struct.pack("<2I4Q2I2Q", offset, 0, 0, 0, start, 0, 0, 0, 0, 0)
        offset += len(section) + 1
    head = bytearray(0x40)
    struct.pack_into("<Q", head, 0x28, at)
    struct.pack_into("<3H", head, 0x3A, 0x40, len(sections), 0)
    return bytes(head) + data + names + rows


def wheel(folder: Path, extension: bytes, tags: str = TAGS) -> str:
    path = folder / f"loadmaster-0.1.0-{tags}.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("loadmaster/fast.abi3.so", extension)
    return str(path)


def test_a_clean_wheel_has_no_faults(tmp_path):
    clean = elf([".shstrtab", ".text"], b"crates/numpy/src/lib.rs\0")
    assert list(look.faults(wheel(tmp_path, clean), ["/src/loadmaster"])) == []


@pytest.mark.parametrize(
    ("sections", "data", "tags", "words"),
    [
        ([".text"], b"", "cp311-abi3-linux_x86_64", "not tagged abi3 and manylinux"),
        ([".text"], b"", "cp311-cp311-manylinux_2_17_x86_64", "not tagged abi3 and manylinux"),
        ([".text", ".symtab"], b"", TAGS, "not stripped of .symtab"),
        ([".debug_line"], b"", TAGS, "not stripped of .debug_line"),
        ([".text"], b"\0/home/me/x.rs\0", TAGS, "names '/home/me/x.rs'"),
        ([".text"], b"\0/opt/.cargo/registry/src/a/b.rs\0", TAGS, "names '/opt/.cargo/registry"),
        ([".text"], b"\0/src/loadmaster/rust/core\0", TAGS, "names '/src/loadmaster/rust/core'"),
    ],
)
def test_faults_are_named(sections, data, tags, words, tmp_path):
    path = wheel(tmp_path, elf([".shstrtab", *sections], data), tags)
    [found] = look.faults(path, ["/src/loadmaster", ""])
    assert words in found


def test_a_build_for_development_is_not_released(tmp_path):
    path = wheel(tmp_path, Path(fast.__file__).read_bytes())
    assert any("not stripped" in fault for fault in look.faults(path))
