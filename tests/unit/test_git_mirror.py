"""The trusted side of git: mirrors, the guarded runner, and where the token goes (nowhere)."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.git.command import GitCommand
from adapters.git.mirror import Mirror
from adapters.git.names import checked_ref, repo_path, session_name
from domain.faults import Fault
from tests.conformance.git_world import TOKEN, GitWorld, git_world

KEY = "default:acme/widget"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GitWorld]:
    with git_world(tmp_path / "served") as served:
        yield served


@pytest.fixture
def mirror(world: GitWorld, tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirrors", world.url, TOKEN, reserve=0, deadline=30)


async def test_a_mirror_follows_branches_pull_requests_and_the_default_branch(
    world: GitWorld, mirror: Mirror
) -> None:
    """First a clone, then fetches: new and moved heads come, deleted branches go, the default branch is known."""
    work = world.create(branch="trunk")
    state = await mirror.ensure(KEY, "acme", "widget")
    assert (state.cloned, state.default_branch) == (True, "trunk")
    first = await mirror.head(KEY, "refs/heads/trunk")
    world.git("checkout", "--quiet", "-b", "feature", cwd=work)
    pull = world.commit(work, {"f": "1"}, "feature", to="refs/pull/7/head")
    world.git("push", "--quiet", "origin", "feature", cwd=work)
    assert await mirror.head(KEY, "refs/pull/7/head") is None
    state = await mirror.ensure(KEY, "acme", "widget")
    assert not state.cloned
    assert await mirror.head(KEY, "refs/pull/7/head") == pull
    assert await mirror.head(KEY, "refs/heads/feature") == pull
    assert await mirror.head(KEY, "refs/heads/trunk") == first
    world.git("push", "--quiet", "origin", ":feature", cwd=work)
    world.git("update-ref", "refs/heads/next", pull, cwd=world.root / "acme/widget.git")
    world.git("symbolic-ref", "HEAD", "refs/heads/next", cwd=world.root / "acme/widget.git")
    assert (await mirror.ensure(KEY, "acme", "widget")).default_branch == "next"
    assert await mirror.head(KEY, "refs/heads/feature") is None
    assert await mirror.default_branch(KEY) == "next"


async def test_an_empty_repository_has_no_default_branch(world: GitWorld, mirror: Mirror) -> None:
    """An empty repository is mirrored and has no head."""
    world.create(empty=True)
    await mirror.ensure(KEY, "acme", "widget")
    assert await mirror.default_branch(KEY) is None
    assert await mirror.head(KEY, "refs/heads/main") is None


async def test_the_token_opens_a_private_repository_and_is_left_nowhere(
    world: GitWorld, mirror: Mirror
) -> None:
    """The token is asked for once per call, comes in the header only, and no file keeps it."""
    world.create()
    world.private.add("acme/widget")
    await mirror.ensure(KEY, "acme", "widget")
    assert await mirror.head(KEY, "refs/heads/main")
    assert any(credential for _, credential in world.requests)
    assert not [path for path, _ in world.requests if TOKEN in path]
    for file in mirror.root.rglob("*"):
        if file.is_file():
            assert TOKEN.encode() not in file.read_bytes(), file
    assert not list(mirror.root.rglob("askpass*"))
    assert world.url.encode() not in (mirror.path(KEY) / "config").read_bytes()


async def test_the_token_stands_in_no_argv_and_no_environment(world: GitWorld, mirror: Mirror) -> None:
    """While git waits for the server, no process of the machine shows the token."""
    world.create()
    world.hang = threading.Event()
    running = asyncio.create_task(mirror.ensure(KEY, "acme", "widget"))
    await asyncio.to_thread(world.asked.wait, 30)
    shown = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            for part in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    shown += (entry / part).read_bytes()
    assert b"ls-remote" in shown
    assert TOKEN.encode() not in shown
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("status", "private", "token", "code"),
    [
        (0, True, "wrong-token-91", "git_auth_failed"),
        (0, True, "", "git_auth_failed"),
        (403, False, TOKEN, "git_auth_failed"),
        (404, False, TOKEN, "git_not_found"),
        (500, False, TOKEN, "git_unreachable"),
        (502, False, TOKEN, "git_unreachable"),
    ],
)
async def test_failures_are_told_apart_without_secrets(
    world: GitWorld, tmp_path: Path, *, status: int, private: bool, token: str, code: str
) -> None:
    """Refused, missing and away have their own codes, and no fault carries token or address."""
    world.create()
    world.fail = status
    if private:
        world.private.add("acme/widget")
    with pytest.raises(Fault) as caught:
        await Mirror(tmp_path / "m", world.url, token, reserve=0).ensure(KEY, "acme", "widget")
    assert caught.value.code == code
    told = f"{caught.value} {caught.value.params}"
    assert world.url not in told
    assert not token or token not in told
    assert not list((tmp_path / "m" / "default" / "acme").glob(".widget.git.incoming*"))


async def test_nobody_listening_is_unreachable(tmp_path: Path) -> None:
    """A refused connection is the outside being away, not a failure of the repository."""
    with pytest.raises(Fault, match="git_unreachable"):
        await Mirror(tmp_path, "http://127.0.0.1:9", TOKEN, reserve=0).ensure(KEY, "acme", "widget")


async def test_a_hanging_server_meets_the_deadline_and_leaves_no_process(
    world: GitWorld, tmp_path: Path
) -> None:
    """Git and its helpers are gone after the deadline: the mirror's lock, which they inherit, is free."""
    world.create()
    mirror = Mirror(tmp_path / "m", world.url, TOKEN, reserve=0, deadline=1)
    world.hang = threading.Event()
    with pytest.raises(Fault, match="git_timeout"):
        await mirror.ensure(KEY, "acme", "widget")
    world.hang.set()
    world.hang = None
    assert (await mirror.ensure(KEY, "acme", "widget")).cloned


async def test_the_token_follows_no_redirect(world: GitWorld, mirror: Mirror, tmp_path: Path) -> None:
    """A redirect to another server is refused before that server is asked."""
    with git_world(tmp_path / "elsewhere") as elsewhere:
        elsewhere.create()
        elsewhere.private.add("acme/widget")
        world.redirect = elsewhere.url
        with pytest.raises(Fault):
            await mirror.ensure(KEY, "acme", "widget")
        assert elsewhere.requests == []


async def test_leftovers_of_killed_clones_and_fetches_are_cleaned_up(world: GitWorld, mirror: Mirror) -> None:
    """Half clones, lock files and half packs of a killed git do not stop the next fetch."""
    work = world.create()
    half = mirror.path(KEY).parent / ".widget.git.incoming-0"
    half.mkdir(parents=True)
    (half / "HEAD").write_text("half")
    await mirror.ensure(KEY, "acme", "widget")
    assert not half.exists()
    for name in (
        "packed-refs.lock",
        "HEAD.lock",
        "config.lock",
        "refs/heads/main.lock",
        "objects/pack/tmp_pack_1",
    ):
        (mirror.path(KEY) / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror.path(KEY) / name).write_text("")
    head = world.commit(work, {"new": "x"}, "second")
    await mirror.ensure(KEY, "acme", "widget")
    assert await mirror.head(KEY, "refs/heads/main") == head
    assert not list(mirror.path(KEY).rglob("*.lock"))


async def test_two_fetches_of_one_mirror_take_turns(world: GitWorld, mirror: Mirror) -> None:
    """Concurrent calls give one clone and the same answer."""
    world.create()
    states = await asyncio.gather(*(mirror.ensure(KEY, "acme", "widget") for _ in range(4)))
    assert sorted(state.cloned for state in states) == [False, False, False, True]


async def test_a_full_disk_is_told_before_anything_is_fetched(world: GitWorld, tmp_path: Path) -> None:
    """Less free space than the reserve is a fault of its own, and nothing was asked of the server."""
    with pytest.raises(Fault, match="disk_full"):
        await Mirror(tmp_path / "m", world.url, TOKEN, reserve=1 << 62).ensure(KEY, "acme", "widget")
    assert world.requests == []


@pytest.mark.parametrize(
    "key",
    [
        "default:../x",
        "default:a/..",
        "default:./x",
        "acme/widget",
        "default:a/b/c",
        "default:A/b",
        "default:a/b\n",
        "default:a/..~1",
        "default:/b",
        "x:a/b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(key: str, tmp_path: Path) -> None:
    """No key of a repository leads out of the root."""
    with pytest.raises(Fault, match="invalid_name"):
        repo_path(tmp_path, key)


def test_names_that_gitea_allows_lead_below_the_root(tmp_path: Path) -> None:
    """Dots, dashes and a newcomer's suffix are fine; a session's branch carries kind and number."""
    assert repo_path(tmp_path, "default:a.b/-c_.~12", suffix=".git") == tmp_path / "default/a.b/-c_.~12.git"
    name = session_name("default:acme/widget:pull_request:7")
    assert (name.repo_key, name.label, name.branch) == (
        KEY,
        "pull-request-7",
        "refs/heads/turnkeeper/pull-request-7",
    )


@pytest.mark.parametrize(
    "ref",
    [
        "main",
        "--upload-pack=x",
        "refs/heads/a..b",
        "refs/heads/.a",
        "refs/heads/a.lock",
        "refs/heads/a b",
        "refs/heads//a",
    ],
)
def test_refs_that_are_none_are_refused(ref: str) -> None:
    """Options, ranges and malformed names never reach git as refs."""
    with pytest.raises(Fault, match="invalid_name"):
        checked_ref(ref)


async def test_owners_and_names_are_checked_before_they_become_addresses(
    mirror: Mirror, world: GitWorld
) -> None:
    """An owner or name with a slash, a query or a climb asks the server nothing."""
    for owner, name in (("..", "x"), ("a/b", "x"), ("a", "x?y"), ("a", "x y"), ("a", "")):
        with pytest.raises(Fault, match="invalid_name"):
            await mirror.ensure(KEY, owner, name)
    assert world.requests == []


async def test_a_symbolic_link_among_the_folders_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    """A planted link in the place of an owner's folder is not followed."""
    (mirror.root / "default").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (mirror.root / "default" / "acme").symlink_to(tmp_path / "outside")
    with pytest.raises(Fault, match="unsafe_path"):
        await mirror.ensure(KEY, "acme", "widget")
    assert list((tmp_path / "outside").iterdir()) == []


async def test_no_users_or_systems_configuration_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: GitWorld
) -> None:
    """A user's git configuration, its hooks and environment do not reach the runner."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text('[alias]\n  version = "!touch {home}/ran"\n[user]\n  name = somebody\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "somebody")
    done = await GitCommand(tmp_path / "private").run("config", "--get", "user.name", ok=(0, 1))
    assert done.rc == 1
    with pytest.raises(Fault, match="git_failed"):  # local paths are no remotes for us
        await GitCommand(tmp_path / "private").run("ls-remote", str(world.create()))


async def test_git_that_says_too_much_is_stopped(tmp_path: Path) -> None:
    """Output without end is a fault, not an exhausted memory."""
    loud = tmp_path / "loud"
    loud.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    loud.chmod(0o755)
    with pytest.raises(Fault, match="git_failed"):
        await GitCommand(tmp_path / "private", program=str(loud)).run("anything")
