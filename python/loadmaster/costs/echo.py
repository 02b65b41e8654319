"""The other end of a measured transfer: a process that sends back each message.

Run as ``python -m loadmaster.costs.echo WAY ADDRESS``. A round begins with the number of bytes and
the number of messages. Then the messages come, and each is sent back whole. With shared memory, a
message is one byte on the pipe: it says that the shared block is full.
"""

from __future__ import annotations

import socket
import struct
import sys
from multiprocessing import resource_tracker, shared_memory
from typing import BinaryIO

HEADER = struct.Struct("<QQ")


def serve(incoming: BinaryIO, outgoing: BinaryIO, block: memoryview | None = None) -> None:
    """Sends back each message until the other end closes."""
    while len(head := incoming.read(HEADER.size)) == HEADER.size:
        size, repeats = HEADER.unpack(head)
        mine = bytearray(size)
        for _ in range(repeats):
            if block is None:
                fill(incoming, mine)
                outgoing.write(mine)
            else:
                incoming.read(1)
                mine[:] = block[:size]
                block[:size] = mine
                outgoing.write(b"!")
            outgoing.flush()


def fill(incoming: BinaryIO, buffer: bytearray) -> None:
    """Fills a buffer; reads no byte beyond it.

    Raises
    ------
    EOFError
        The other end is gone.
    """
    view, done = memoryview(buffer), 0
    while done < len(buffer):
        got = incoming.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError("the other end of the transfer is gone")
        done += got


def _main(way: str, address: str) -> None:
    if way in ("tcp", "unix_socket"):
        if way == "tcp":
            line = socket.create_connection(("127.0.0.1", int(address)))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.connect(address)
        with line, line.makefile("rb") as incoming, line.makefile("wb") as outgoing:
            serve(incoming, outgoing)
    elif way == "shared_memory":
        block = shared_memory.SharedMemory(address)
        # The process that made the block removes it.
        resource_tracker.unregister(block._name, "shared_memory")  # type: ignore[attr-defined]
        assert block.buf is not None
        view = memoryview(block.buf)
        serve(sys.stdin.buffer, sys.stdout.buffer, view)
        view.release()
        block.close()
    else:
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    _main(*sys.argv[1:])
