"""What the agent commits, as it is published: under the bot's name, with the requester as co-author.

Nobody vouches for the names in a commit that an agent made, so author and committer become the bot; message, tree
and times stay, signatures go (they would not fit any more). The same commits give the same ids every time, so that
publishing again is nothing new. Pure.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping

from domain.faults import Invalid

_WHEN = re.compile(rb"> (\d{1,19} [+-]\d{4})$")
_TRAILER = re.compile(rb"[A-Za-z0-9][A-Za-z0-9-]*: \S")
_KEPT = (b"tree ", b"encoding ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """A name and a mail address, as commits carry them."""

    name: str
    email: str

    def __str__(self) -> str:
        """``name <address>``."""
        return f"{self.name} <{self.email}>"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishOrder:
    """What is to be published where. ``branch`` without ``refs/heads/``; ``max_bytes`` of new objects, packed."""

    branch: str
    committer: Signature
    co_author: Signature | None
    max_bytes: int = 100 * 1024 * 1024
    max_commits: int = 1000


def branch_of(pattern: str, task_id: str) -> str:
    """The branch of a task; ``{task}`` in the pattern stands for its id."""
    return pattern.replace("{task}", task_id)


def noreply(login: str, host: str) -> Signature:
    """An account as Gitea names it without its address (its default for ``NO_REPLY_ADDRESS``)."""
    return Signature(name=login, email=f"{login.lower()}@noreply.{host}")


def object_id(kind: str, content: bytes, *, like: str) -> str:
    """Git's id of an object, of the same length as ``like`` (SHA-1 or SHA-256)."""
    data = b"%s %d\0%s" % (kind.encode(), len(content), content)
    return (hashlib.sha256(data) if len(like) == 64 else hashlib.sha1(data)).hexdigest()  # noqa: S324 - git's own


def parents_of(raw: bytes) -> tuple[str, ...]:
    """The parents that a commit names."""
    return tuple(
        line.removeprefix(b"parent ").decode("ascii", "replace")
        for line in raw.partition(b"\n\n")[0].split(b"\n")
        if line.startswith(b"parent ")
    )


def rewritten(raw: bytes, parents: Mapping[str, str], order: PublishOrder) -> bytes:
    """A commit as it is published. ``parents``: new ids of the commits that are published with it.

    Raises ``Invalid`` (``commit_malformed``) for what git itself would not have written.
    """
    head, separator, message = raw.partition(b"\n\n")
    made: list[bytes] = []
    for line in head.split(b"\n"):
        if line.startswith(b"parent "):
            old = line.removeprefix(b"parent ").decode("ascii", "replace")
            made.append(f"parent {parents.get(old, old)}".encode())
        elif line.startswith((b"author ", b"committer ")):
            when = _WHEN.search(line)
            if when is None:
                raise Invalid("A commit has no readable time.", code="commit_malformed")
            made.append(line.split(b" ", 1)[0] + b" " + str(order.committer).encode() + b" " + when[1])
        elif line.startswith(_KEPT):
            made.append(line)
    if not separator or b"\0" in raw:
        raise Invalid("A commit has no readable message.", code="commit_malformed")
    return b"\n".join(made) + b"\n\n" + _credited(message, order.co_author)


def _credited(message: bytes, co_author: Signature | None) -> bytes:
    """The message with the co-author's trailer at its end, once."""
    if co_author is None:
        return message
    trailer = f"Co-authored-by: {co_author}".encode()
    text = message.rstrip()
    last = text.rpartition(b"\n\n")[2].split(b"\n") if b"\n\n" in text else []
    if trailer in last:
        return text + b"\n"
    joined = bool(last) and all(_TRAILER.match(line) for line in last)
    return text + (b"\n" if joined else b"\n\n") + trailer + b"\n"
