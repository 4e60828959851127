"""The program inside the box: pipes its stdio to the bridge's unix socket, both ways.

Started as ``python3 -I -S stub.py /bridge/mcp.sock`` by the app-server, so it uses only the standard library and
imports nothing of this project. It knows no protocol: bytes pass as they are, lines of any length. It ends when
either side ends; what the bridge still had to say is passed on first. Exit status: 0 after a conversation, 1 when
the socket cannot be reached, 2 when called wrongly.
"""

import contextlib
import os
import socket
import sys
import threading

CHUNK = 1 << 16
LAST_WORDS_SECONDS = 5.0


def main() -> int:
    """Connect and pump until one side ends."""
    if len(sys.argv) != 2:
        os.write(2, b"usage: stub.py SOCKET\n")
        return 2
    bridge = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(bridge, sys.argv[1])
    except OSError as error:
        os.write(2, f"the bridge cannot be reached: {error.strerror}\n".encode())
        return 1
    os.set_blocking(0, True)
    os.set_blocking(1, True)
    threading.Thread(target=_send, args=(bridge,), daemon=True).start()
    _receive(bridge)
    return 0


def _connect(bridge: socket.socket, path: str) -> None:
    """Connect through the folder's descriptor: a socket's own path may be longer than the 107 bytes of an address."""
    parent, _, name = path.rpartition("/")
    folder = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        bridge.connect(f"/proc/self/fd/{folder}/{name}")
    finally:
        os.close(folder)


def _send(bridge: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(0, CHUNK):
            bridge.sendall(chunk)
    with contextlib.suppress(OSError):
        bridge.shutdown(socket.SHUT_WR)
    # The bridge answers the end with its own; should it not, the reading side must not wait for ever.
    threading.Timer(LAST_WORDS_SECONDS, os._exit, (0,)).start()


def _receive(bridge: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := bridge.recv(CHUNK):
            view = memoryview(chunk)
            while view:
                view = view[os.write(1, view) :]


if __name__ == "__main__":
    # Not sys.exit: the sending thread may sit in a read of stdin for ever.
    os._exit(main())
