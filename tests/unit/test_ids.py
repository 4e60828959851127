import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain import ids
from domain.faults import Invalid


def test_task_id_vector() -> None:
    """A task's id is the first 24 hex digits of its delivery key's SHA-256, as in the given vector."""
    key = ids.delivery_key("8f7e")
    assert key == "default:8f7e"
    assert hashlib.sha256(key.encode()).hexdigest() == (
        "0511fce533454e78175537ea911bea9be673548843d4c0b2f07f3441d4ba61dc"
    )
    assert ids.task_id(key) == "gitea-task-0511fce533454e78175537ea"


def test_keys() -> None:
    """Keys have the seed's forms, in lower case."""
    repo = ids.repo_key("Acme", "Widget")
    assert repo == "default:acme/widget"
    assert ids.repo_key("acme", "widget", repository_id=7) == "default:acme/widget~7"
    assert ids.resource_key(repo, "issue", 42) == "default:acme/widget:issue:42"
    assert ids.session_key(repo, "pull_request", 3) == "default:acme/widget:pull_request:3"
    assert ids.deferred_key("comment", 3001) == "default:comment:3001"
    assert ids.deferred_key("review", 5) == "default:review:5"
    assert ids.deferred_key("retry", "r-1") == "default:retry:r-1"


def test_streams() -> None:
    """Every stream has its own prefix."""
    repo = "default:acme/widget"
    assert ids.delivery_stream("default:8f7e") == "delivery:default:8f7e"
    assert ids.repo_stream(repo) == "repo:default:acme/widget"
    assert ids.repository_id_stream(7) == "repository-id:default:7"
    assert ids.session_stream(f"{repo}:issue:42") == "session:default:acme/widget:issue:42"
    assert ids.task_stream("gitea-task-1") == "task:gitea-task-1"
    assert ids.turn_stream("turn-1") == "turn:turn-1"
    assert (
        ids.mention_stream(7, "comment", 3001, "2026-11-03T09:15:30Z")
        == "mention:7:comment:3001:2026-11-03T09:15:30Z"
    )
    assert ids.request_stream("r") == "request:r"
    assert ids.lease_scope(repo) == "repo:default:acme/widget"
    assert ids.lease_stream(ids.lease_scope(repo)) == "lease:repo:default:acme/widget"
    assert ids.CONTROL_STREAM == "control:default"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("", "x"),
        ("a", ""),
        ("..", "x"),
        ("a", ".."),
        ("a", "."),
        ("a/b", "x"),
        ("a", "x/../y"),
        ("a", "x~7"),
        ("a", "x.git"),
        ("a", "x.WIKI"),
        ("a", "x:issue"),
        ("a b", "x"),
        ("ä", "x"),
        ("a", "x\n"),
        ("a", "x" * 101),
        ("a", "\u212aelvin"),
    ],
)
def test_refused_names(owner: str, name: str) -> None:
    """Names that Gitea does not allow, or that a folder or a key could be broken by, are refused."""
    with pytest.raises(Invalid) as caught:
        ids.repo_key(owner, name)
    assert caught.value.code == "invalid_repository_name"


NAMES = st.text("abcXYZ019-_.", min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."} and not name.lower().endswith((".git", ".wiki"))
)


@given(NAMES, NAMES, st.none() | st.integers(1, 10**9))
def test_keys_give_their_folders(owner: str, name: str, number: int | None) -> None:
    """A key gives back its folders, which are single path parts; the form with an id is never another's plain key."""
    key = ids.repo_key(owner, name, repository_id=number)
    instance, folder, leaf = ids.workspace_parts(key)
    assert (instance, folder) == ("default", owner.lower())
    assert leaf == name.lower() + ("" if number is None else f"~{number}")
    assert "/" not in leaf


@pytest.mark.parametrize(
    "key", ["", "default:a", "other:a/b", "default:a/..", "default:../b", "default:A/b", "default:a/b/c"]
)
def test_odd_keys_give_no_folders(key: str) -> None:
    """Nothing but a repository key names a workspace."""
    with pytest.raises(Invalid):
        ids.workspace_parts(key)


@pytest.mark.parametrize("number", [0, -1, True, "5", None, 1.0])
def test_odd_numbers(number: object) -> None:
    """Numbers are whole and from 1."""
    with pytest.raises(Invalid):
        ids.resource_key("default:a/b", "issue", number)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        ids.repository_id_stream(number)  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ["", "a b", "a:b", "a/b", "x" * 101, "ü"])
def test_odd_delivery_ids(odd: str) -> None:
    """A delivery id can not run into another kind of key."""
    with pytest.raises(Invalid):
        ids.delivery_key(odd)


def test_odd_resource_kind() -> None:
    """There are issues and pull requests, nothing else."""
    with pytest.raises(Invalid):
        ids.resource_key("default:a/b", "wiki", 1)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.text(max_size=5), st.integers(1, 3), st.text(max_size=5), st.integers(0, 3)), unique=True
    )
)
def test_intent_ids_differ(causes: list[tuple[str, int, str, int]]) -> None:
    """Different causes give different intents, the same cause the same."""
    clean = [cause for cause in causes if "\n" not in cause[0] + cause[2]]
    found = [ids.intent_id(stream, version, kind, ordinal) for stream, version, kind, ordinal in clean]
    assert len(set(found)) == len(clean)
    assert ids.intent_id("task:x", 3, "comment", 0) == ids.intent_id("task:x", 3, "comment")
