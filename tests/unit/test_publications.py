"""How a commit is rewritten for its publication."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.faults import Invalid
from domain.publications import PublishOrder, Signature, branch_of, noreply, object_id, parents_of, rewritten

BOT = Signature(name="bot", email="bot@noreply.git.example.org")
ALICE = noreply("Alice", "git.example.org")
ORDER = PublishOrder(branch="turnkeeper/t", committer=BOT, co_author=ALICE)
TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
OLD, NEW = "a" * 40, "b" * 40
TRAILER = b"Co-authored-by: Alice <alice@noreply.git.example.org>"


def commit(message: bytes, *more: bytes) -> bytes:
    """A raw commit with one parent."""
    lines = [
        f"tree {TREE}".encode(),
        f"parent {OLD}".encode(),
        b"author Eve <eve@example.org> 1700000000 +0100",
        b"committer Mallory <m@example.org> 1700000001 +0000",
        *more,
    ]
    return b"\n".join(lines) + b"\n\n" + message


def test_names_change_and_times_stay() -> None:
    """Author and committer become the bot; the parent follows; signatures go, the encoding stays."""
    raw = commit(
        b"do it\n", b"gpgsig -----BEGIN", b" author Eve <e> 1 +0000", b" -----END", b"encoding UTF-8"
    )
    assert (
        rewritten(raw, {OLD: NEW}, ORDER)
        == (
            f"tree {TREE}\nparent {NEW}\n"
            "author bot <bot@noreply.git.example.org> 1700000000 +0100\n"
            "committer bot <bot@noreply.git.example.org> 1700000001 +0000\n"
            "encoding UTF-8\n\ndo it\n\n"
        ).encode()
        + TRAILER
        + b"\n"
    )
    assert parents_of(raw) == (OLD,)


@pytest.mark.parametrize(
    ("message", "end"),
    [
        (b"do it", b"do it\n\n" + TRAILER + b"\n"),
        (b"", b"\n\n" + TRAILER + b"\n"),
        (b"fix: it\n", b"fix: it\n\n" + TRAILER + b"\n"),
        (b"do it\n\nRefs: 3\n", b"do it\n\nRefs: 3\n" + TRAILER + b"\n"),
        (b"do it\n\n" + TRAILER + b"\n\n", b"do it\n\n" + TRAILER + b"\n"),
        (b"do it\n\nbecause of that\n", b"do it\n\nbecause of that\n\n" + TRAILER + b"\n"),
    ],
)
def test_the_trailer_stands_once_at_the_end(message: bytes, end: bytes) -> None:
    """It joins trailers that are there, and a subject that looks like one is none."""
    assert rewritten(commit(message), {}, ORDER).partition(b"\n\n")[2] == end


@given(st.binary(max_size=200).filter(lambda message: b"\0" not in message))
def test_rewriting_is_stable(message: bytes) -> None:
    """The same commit gives the same bytes, and what was rewritten once is not changed by a second time."""
    once = rewritten(commit(message), {}, ORDER)
    assert rewritten(commit(message), {}, ORDER) == once
    assert rewritten(once, {}, ORDER) == once


def test_without_a_requester_there_is_no_trailer() -> None:
    """A text that was erased names nobody, and the message stays as it is."""
    order = PublishOrder(branch="b", committer=BOT, co_author=None)
    assert rewritten(commit(b"do it\n"), {}, order).endswith(b"\n\ndo it\n")


@pytest.mark.parametrize("raw", [b"tree x\nauthor A <a> now\n\nx", commit(b"a\0b"), b"tree x"])
def test_what_git_would_not_write_is_refused(raw: bytes) -> None:
    """Commits without a time, without a message part, or with NUL are malformed."""
    with pytest.raises(Invalid) as caught:
        rewritten(raw, {}, ORDER)
    assert caught.value.code == "commit_malformed"


def test_ids_are_gits() -> None:
    """The empty tree has its well-known ids."""
    assert object_id("tree", b"", like=OLD) == TREE
    assert object_id("tree", b"", like="0" * 64).startswith("6ef19b41225c5369f1c104d45d8d85efa9b057b5")
    assert branch_of("turnkeeper/{task}", "gitea-task-1") == "turnkeeper/gitea-task-1"
