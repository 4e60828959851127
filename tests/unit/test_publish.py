"""Publishing: what a workspace committed reaches one branch, under the bot's name, and nothing else does."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.boxes import Boxes
from adapters.git.command import GitCommand
from adapters.git.mirror import Mirror
from adapters.git.publish import BranchPublisher
from adapters.git.workspace import Prepared, WorkspacePlan, Workspaces
from domain.faults import Fault, Unavailable
from domain.publications import PublishOrder, noreply
from tests.conformance.git_world import TOKEN, GitWorld, git_world

KEY = "default:acme/widget"
BRANCH = "turnkeeper/gitea-task-1"
BOT = noreply("codex-bot", "git.example.org")
ALICE = noreply("Alice", "git.example.org")
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed here"
)
ISOLATIONS = [
    pytest.param("bubblewrap", marks=[pytest.mark.bubblewrap, needs_bubblewrap]),
    pytest.param("none"),
]


class Site:
    """A served repository, its mirror, and a workspace with a session in it."""

    def __init__(self, root: Path, world: GitWorld, isolation: str) -> None:
        self.world = world
        self.author = world.create()
        self.bare = world.root / "acme" / "widget.git"
        world.git("config", "http.receivepack", "true", cwd=self.bare)
        self.command = GitCommand(root / "mirrors" / ".home")
        self.mirror = Mirror(root / "mirrors", world.url, TOKEN, reserve=0, git=self.command)
        self.boxes = Boxes(isolation)  # type: ignore[arg-type]
        self.workspaces = Workspaces(root / "workspaces", self.mirror, self.boxes, reserve=0)
        self.publisher = BranchPublisher(self.mirror, self.boxes)

    @property
    def path(self) -> Path:
        return self.workspaces.path(KEY)

    async def enter(self) -> None:
        await self.mirror.ensure(KEY, "acme", "widget")
        plan = WorkspacePlan(
            repo_key=KEY,
            session_key=f"{KEY}:issue:1",
            task_id="gitea-task-1",
            base_ref="refs/heads/main",
            head_ref="refs/heads/main",
        )
        assert isinstance(await self.workspaces.prepare(plan), Prepared)

    def git(self, *arguments: str) -> str:
        return self.world.git(*arguments, cwd=self.path)

    def commit(self, message: str, **files: str) -> str:
        for name, content in files.items():
            (self.path / name).write_text(content)
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD")

    def order(self, branch: str = BRANCH, **limits: int) -> PublishOrder:
        return PublishOrder(branch=branch, committer=BOT, co_author=ALICE, **limits)

    async def publish(self, order: PublishOrder | None = None) -> tuple[str, bool]:
        """The head, and whether a push was needed."""
        async with self.publisher.publication(
            KEY, "acme", "widget", self.path, order or self.order()
        ) as ready:
            needed = ready.present != ready.head
            if needed:
                await ready.push()
            return ready.head, needed

    async def refused(self, order: PublishOrder | None = None) -> Fault:
        with pytest.raises(Fault) as caught:
            await self.publish(order)
        return caught.value

    def there(self, branch: str = BRANCH) -> str:
        return self.world.git("rev-parse", f"refs/heads/{branch}", cwd=self.bare)

    def refs(self) -> str:
        return self.world.git("for-each-ref", cwd=self.bare)

    def shown(self, commit: str, form: str) -> str:
        return self.world.git("log", "-1", f"--format={form}", commit, cwd=self.bare)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GitWorld]:
    with git_world(tmp_path / "served") as served:
        yield served


@pytest.fixture(params=ISOLATIONS)
async def site(request: pytest.FixtureRequest, tmp_path: Path, world: GitWorld) -> Site:
    made = Site(tmp_path, world, request.param)
    await made.enter()
    return made


boxed = pytest.mark.parametrize("site", ISOLATIONS[:1], indirect=True)


async def test_commits_reach_the_branch_under_the_bots_name(site: Site) -> None:
    """Content, messages and times stay; author and committer are the bot, and the requester is co-author."""
    site.commit("first\n\nwhy", one="1")
    last = site.commit("second", two="2")
    head, needed = await site.publish()
    assert needed
    assert site.there() == head != last
    assert site.shown(head, "%an <%ae>|%cn <%ce>") == f"{BOT}|{BOT}"
    assert site.shown(head, "%B") == f"second\n\nCo-authored-by: {ALICE}"
    assert site.shown(f"{head}^", "%B") == f"first\n\nwhy\n\nCo-authored-by: {ALICE}"
    assert site.shown(head, "%ad %cd %T") == site.git("log", "-1", "--format=%ad %cd %T", last)
    assert site.shown(head, "%T") == site.git("rev-parse", "HEAD^{tree}")
    assert site.there("main") == site.shown(f"{head}~2", "%H")


async def test_the_same_commits_again_are_nothing_new(site: Site) -> None:
    """A repeat, also from a mirror that was lost meanwhile, has the same head and needs no push."""
    site.commit("first", one="1")
    head, _ = await site.publish()
    assert await site.publish() == (head, False)
    shutil.rmtree(site.mirror.path(KEY))
    assert await site.publish() == (head, False)


async def test_later_commits_follow_the_published_ones(site: Site) -> None:
    """A second publication of the same task is a fast-forward of the first."""
    site.commit("first", one="1")
    first, _ = await site.publish()
    site.commit("second", two="2")
    second, needed = await site.publish()
    assert needed
    assert site.shown(second, "%P") == first
    assert site.there() == second


async def test_without_commits_there_is_nothing_to_publish(site: Site) -> None:
    """Uncommitted files alone are no publication, and nothing is pushed."""
    (site.path / "draft").write_text("x")
    before = site.refs()
    fault = await site.refused()
    assert (fault.code, fault.params["uncommitted"]) == ("nothing_to_publish", 1)
    assert site.refs() == before


async def test_uncommitted_files_stay_and_are_counted(site: Site) -> None:
    """Only commits are published; what is not committed stays in the workspace and is told."""
    site.commit("first", one="1")
    (site.path / "draft").write_text("x")
    async with site.publisher.publication(KEY, "acme", "widget", site.path, site.order()) as ready:
        assert ready.uncommitted == 1
        await ready.push()
    assert "draft" not in site.world.git("ls-tree", "--name-only", site.there(), cwd=site.bare)
    assert (site.path / "draft").exists()


async def test_a_branch_that_somebody_moved_is_left_alone(site: Site) -> None:
    """Foreign commits on the task's branch stop the publication; they are still there afterwards."""
    site.commit("first", one="1")
    head, _ = await site.publish()
    site.world.git("fetch", "--quiet", "origin", BRANCH, cwd=site.author)
    site.world.git("checkout", "--quiet", "FETCH_HEAD", cwd=site.author)
    foreign = site.world.commit(site.author, {"theirs": "x"}, "theirs", to=f"refs/heads/{BRANCH}")
    site.commit("second", two="2")
    fault = await site.refused()
    assert fault.code == "branch_moved"
    assert site.there() == foreign != head


async def test_a_branch_moved_in_the_last_moment_is_not_forced(site: Site) -> None:
    """Between the look and the push somebody pushes: Gitea's refusal is told as the same case."""
    site.commit("first", one="1")
    async with site.publisher.publication(KEY, "acme", "widget", site.path, site.order()) as ready:
        foreign = site.world.commit(site.author, {"theirs": "x"}, "theirs", to=f"refs/heads/{BRANCH}")
        with pytest.raises(Fault) as caught:
            await ready.push()
    assert caught.value.code == "branch_moved"
    assert site.there() == foreign


async def test_a_protected_branch_is_told(site: Site) -> None:
    """The hook of a protected branch refuses; the fault says what it is."""
    hook = site.bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f"#!/bin/sh\necho 'error: Not allowed to push to protected branch {BRANCH}' >&2\nexit 1\n"
    )
    hook.chmod(0o755)
    site.commit("first", one="1")
    before = site.refs()
    fault = await site.refused()
    assert (fault.code, fault.status) == ("branch_protected", 403)
    hook.write_text("#!/bin/sh\necho 'the quota is used up' >&2\nexit 1\n")
    fault = await site.refused()
    assert fault.code == "push_refused"
    assert "the quota is used up" in fault.message
    assert site.refs() == before


async def test_the_default_branch_is_refused(site: Site) -> None:
    """Whatever a pattern makes of it: nothing is ever pushed to the default branch."""
    site.commit("first", one="1")
    before = site.there("main")
    assert (await site.refused(site.order("main"))).code == "branch_refused"
    assert (await site.refused(site.order("Main"))).code == "branch_refused"
    assert (await site.refused(site.order("x/../main"))).code == "invalid_name"
    assert site.there("main") == before


async def test_too_much_is_refused(site: Site) -> None:
    """Size and number of commits are bounded, and nothing is pushed."""
    before = site.refs()
    (site.path / "big").write_bytes(os.urandom(300_000))
    site.commit("big")
    assert (await site.refused(site.order(max_bytes=100_000))).code == "publication_too_large"
    site.commit("second", two="2")
    assert (await site.refused(site.order(max_commits=1))).code == "publication_too_large"
    assert site.refs() == before


async def test_merges_links_and_submodules_are_just_content(site: Site) -> None:
    """Merge commits keep their parents; symbolic links, gitlinks and LFS pointers are published as they are."""
    base = site.git("rev-parse", "HEAD")
    site.git("checkout", "--quiet", "-b", "side")
    site.commit("side", side="s")
    site.git("checkout", "--quiet", "-")
    (site.path / "link").symlink_to("/etc/passwd")
    site.git("update-index", "--add", "--cacheinfo", f"160000,{base},module")
    site.git("add", "link")
    site.commit("main", pointer="version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    site.git("update-index", "--add", "--cacheinfo", f"160000,{base},module")
    site.git("commit", "--quiet", "-m", "module")
    site.git("merge", "--quiet", "--no-edit", "side")
    head, _ = await site.publish()
    assert len(site.shown(head, "%P").split()) == 2
    modes = {line.split()[0] for line in site.world.git("ls-tree", head, cwd=site.bare).splitlines()}
    assert {"120000", "160000"} <= modes


async def test_other_peoples_commits_keep_their_names(site: Site) -> None:
    """What Gitea has already is not rewritten, also when it came there after this run had started."""
    foreign = site.world.commit(site.author, {"theirs": "x"}, "theirs", to="refs/heads/main")
    site.git("fetch", "--quiet", str(site.bare), "main")
    site.git("merge", "--quiet", "--ff-only", "FETCH_HEAD")
    site.commit("mine", one="1")
    head, _ = await site.publish()
    assert site.shown(head, "%P") == foreign


async def test_a_lost_answer_is_made_good_by_looking(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that arrived although its answer was lost succeeds; one that did not is told to be repeated."""
    real = Mirror.push

    async def lost(self: Mirror, *arguments: object, **more: object) -> str | None:
        await real(self, *arguments, **more)  # type: ignore[arg-type]
        raise Unavailable("gone", code="git_unreachable")

    async def never(_self: Mirror, *_arguments: object, **_more: object) -> str | None:
        raise Unavailable("gone", code="git_timeout")

    site.commit("first", one="1")
    monkeypatch.setattr(Mirror, "push", never)
    assert (await site.refused()).code == "push_failed"
    monkeypatch.setattr(Mirror, "push", lost)
    head, _ = await site.publish()
    assert site.there() == head


async def test_an_unreachable_gitea_leaves_it_unknown(site: Site) -> None:
    """If the look fails too, nobody claims to know."""
    site.commit("first", one="1")
    async with site.publisher.publication(KEY, "acme", "widget", site.path, site.order()) as ready:
        site.world.fail = 503
        with pytest.raises(Unavailable):
            await ready.push()


@boxed
async def test_a_hostile_workspace_gains_nothing(site: Site, tmp_path: Path) -> None:
    """Hooks, fsmonitor, filters and replacements of the workspace act on nothing outside its box."""
    mark = tmp_path / "mark"
    site.commit("first", one="1")
    trap = site.path / ".git" / "trap"
    trap.write_text(f"#!/bin/sh\nenv >'{mark}'\ncat /dev/fd/* >'{mark}' 2>/dev/null\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.alternateRefsCommand", "pack.packObjectsHook"):
        site.git("config", key, str(trap))
    hooks = site.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-push", "reference-transaction", "post-checkout"):
        shutil.copy(trap, hooks / name)
    head, _ = await site.publish()
    assert site.there() == head
    assert not mark.exists()


async def test_a_broken_history_is_refused(site: Site) -> None:
    """A commit whose tree is missing, or whose author line is forged into two, reaches nobody."""
    head = site.git("rev-parse", "HEAD")
    tree = site.git("rev-parse", "HEAD^{tree}")
    before = site.refs()
    bad = site.path / "bad"
    bad.write_text(f"tree {tree}\nparent {head}\nauthor A <a> now\ncommitter A <a> now\n\nx\n")
    forged = site.git("hash-object", "-t", "commit", "-w", "--literally", "bad")
    bad.unlink()
    site.git("update-ref", "HEAD", forged)
    assert (await site.refused()).code == "publication_refused"
    assert site.refs() == before


async def test_nothing_is_left_behind(site: Site) -> None:
    """The trusted repository of a publication is gone afterwards, and the mirror holds no stranger's objects."""
    last = site.commit("first", one="1")
    await site.publish()
    folder = site.mirror.path(KEY).parent
    assert [entry.name for entry in folder.iterdir() if "incoming" in entry.name] == []
    looked = await site.command.run(
        "--git-dir", str(site.mirror.path(KEY)), "cat-file", "-e", last, ok=(0, 1, 128)
    )
    assert looked.rc != 0
