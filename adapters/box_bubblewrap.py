"""A box's options for bubblewrap.

They travel over an inherited descriptor (``--args``), never in argv, because the environment of a box may hold a
capability and every user of the machine can read argv. As the workflow page demands: an own user, even and above
all as root; own mount, pid, ipc and uts namespaces; system folders and single files of ``/etc`` read-only.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from adapters.box_spec import CODEX_HOME, HOME, BoxSpec

UID = 1000
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/libx32", "/bin", "/sbin")
_ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "gai.conf",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_PASSWD = f"agent:x:{UID}:{UID}:agent:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
_GROUP = f"agent:x:{UID}:\nnogroup:x:65534:\n"


class Descriptors:
    """The descriptors handed to one child; closed on our side once it has started."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def add(self, descriptor: int) -> int:
        """Keep an open descriptor until ``close``."""
        self._open.append(descriptor)
        return descriptor

    def data(self, content: bytes) -> int:
        """A descriptor from which exactly ``content`` can be read; it never lies on a disk."""
        descriptor = self.add(os.memfd_create("box", os.MFD_CLOEXEC))
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        """The reading and the writing end of a pipe."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        return self.add(reading), self.add(writing)

    def close_one(self, descriptor: int) -> None:
        """Close one of them early."""
        self._open.remove(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Close all that are still open."""
        while self._open:
            with contextlib.suppress(OSError):
                os.close(self._open.pop())

    def all(self) -> tuple[int, ...]:
        """Those that are open, for ``pass_fds``."""
        return tuple(self._open)


def _system() -> list[str]:
    options: list[str] = []
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()).lstrip("/"), name]
        elif path.is_dir():
            options += ["--ro-bind", name, name]
    for name in _ETC:
        if Path("/etc", name).exists():
            options += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    return options


def options(
    spec: BoxSpec, descriptors: Descriptors, *, info: int, block: int, nested: bool = True
) -> list[str]:
    """All options before the command; data descriptors are added to ``descriptors``.

    ``nested``: user namespaces may be made inside, because this bubblewrap can't forbid them. In one of its own the
    command could mount memory of any size.
    """
    size = str(spec.bounds().tmpfs_bytes)
    made = ["--unshare-user", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL"]
    made += [] if nested else ["--disable-userns"]
    made += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "box"]
    made += ["--die-with-parent", "--new-session"]
    made += _system()
    made += ["--ro-bind-data", str(descriptors.data(_PASSWD.encode())), "/etc/passwd"]
    made += ["--ro-bind-data", str(descriptors.data(_GROUP.encode())), "/etc/group"]
    made += ["--proc", "/proc", "--dev", "/dev"]
    made += ["--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - else half the memory
    made += ["--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", HOME]  # noqa: S108 - the box's own
    if spec.codex_home is not None:
        made += ["--size", size, "--tmpfs", CODEX_HOME]
    for bind in spec.all_binds():
        made += ["--bind" if bind.writable else "--ro-bind", str(bind.source.absolute()), bind.target]
    for file in spec.files:
        made += ["--perms", f"{file.mode:04o}", "--file", str(descriptors.data(file.content)), file.target]
    made += ["--remount-ro", "/", "--chdir", spec.working_folder(), "--clearenv"]
    for name, value in spec.environment().items():
        made += ["--setenv", name, value]
    if spec.lock is not None:
        made += ["--sync-fd", str(spec.lock.fileno())]
    return [*made, "--info-fd", str(info), "--block-fd", str(block)]


def command(
    program: str, spec: BoxSpec, descriptors: Descriptors, *, info: int, block: int, nested: bool = True
) -> Sequence[str]:
    """The whole command line: the program, one option, the box's own command."""
    made = options(spec, descriptors, info=info, block=block, nested=nested)
    arguments = descriptors.data(b"".join(os.fsencode(part) + b"\0" for part in made))
    return [program, "--args", str(arguments), "--", *spec.argv]
