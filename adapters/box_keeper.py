"""The keeper of an unisolated run: a small parent that outlives nobody and leaves no descendant behind.

Started as ``python -I -S box_keeper.py BLOCK_FD COMMAND…`` with nothing but the standard library. It adopts every
orphan below it (child subreaper), is told by the kernel when the service dies (parent-death signal), and ends all
its descendants on SIGTERM, on the service's death and when the command itself has ended.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _children() -> list[int]:
    """Our living direct children; orphans of descendants become ours as soon as their parent ends."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            fields = text[text.rindex(")") + 2 :].split()
            if int(fields[1]) == os.getpid() and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def _end_descendants() -> None:
    """Stop every child before killing it, until none is left: what they leave behind becomes ours in turn."""
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main(arguments: list[str]) -> int:
    """Run the command; its return code, or 128 + the signal that ended it."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_descendants()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    block = int(arguments[0])
    if os.getppid() != parent or not os.read(block, 1):
        return 128 + signal.SIGTERM  # the service died before it said go
    os.close(block)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setpgid(0, 0)
            os.execvp(arguments[1], arguments[1:])  # noqa: S606 - the very purpose
        except OSError as error:
            os.write(2, f"{arguments[1]}: {error.strerror}\n".encode())
        os._exit(127)
    for stream in (0, 1):
        os.close(stream)  # else the service would never see the end of the command's output
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            _end_descendants()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
