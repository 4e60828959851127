"""Workspaces: sessions take turns in one work tree, nothing is lost, strangers' changes block."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from adapters.boxes import Boxes, lock_workspace
from adapters.git import parking
from adapters.git.mirror import Mirror
from adapters.git.workspace import Blocked, Left, Prepared, WorkspacePlan, Workspaces
from domain.faults import Fault
from tests.conformance.git_world import TOKEN, GitWorld, git_world

KEY = "default:acme/widget"
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed here"
)
ISOLATIONS = [
    pytest.param("bubblewrap", marks=[pytest.mark.bubblewrap, needs_bubblewrap]),
    pytest.param("none"),
]
boxed = pytest.mark.parametrize("house", ISOLATIONS[:1], indirect=True)


@dataclass
class House:
    """A served repository, its mirror and its workspace."""

    world: GitWorld
    mirror: Mirror
    workspaces: Workspaces
    author: Path
    left: Left | None = None

    @property
    def path(self) -> Path:
        return self.workspaces.path(KEY)

    def git(self, *arguments: str) -> str:
        return self.world.git(*arguments, cwd=self.path)

    def plan(self, session: str, task: str) -> WorkspacePlan:
        kind, _, number = session.partition(":")
        pull = kind == "pull_request"
        return WorkspacePlan(
            repo_key=KEY,
            session_key=f"{KEY}:{session}",
            task_id=task,
            base_ref="refs/heads/main",
            head_ref=f"refs/pull/{number}/head" if pull else "refs/heads/main",
            previous=self.left,
        )

    async def try_to_enter(self, session: str, task: str) -> Prepared | Blocked:
        await self.mirror.ensure(KEY, "acme", "widget")
        return await self.workspaces.prepare(self.plan(session, task))

    async def enter(self, session: str, task: str) -> Prepared:
        outcome = await self.try_to_enter(session, task)
        assert isinstance(outcome, Prepared), outcome
        return outcome

    async def leave(self, session: str, task: str) -> Left:
        self.left = await self.workspaces.record(KEY, f"{KEY}:{session}", task)
        return self.left

    def files(self) -> dict[str, str]:
        return {
            str(file.relative_to(self.path)): file.read_text()
            for file in sorted(self.path.rglob("*"))
            if file.is_file() and ".git" not in file.relative_to(self.path).parts
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GitWorld]:
    with git_world(tmp_path / "served") as served:
        yield served


@pytest.fixture(params=ISOLATIONS)
def house(request: pytest.FixtureRequest, tmp_path: Path, world: GitWorld) -> House:
    author = world.create()
    mirror = Mirror(tmp_path / "mirrors", world.url, TOKEN, reserve=0)
    workspaces = Workspaces(tmp_path / "workspaces", mirror, Boxes(request.param), reserve=0)
    return House(world=world, mirror=mirror, workspaces=workspaces, author=author)


def reasons(outcome: Prepared | Blocked) -> list[str]:
    assert isinstance(outcome, Blocked), outcome
    return [finding.code for finding in outcome.reasons]


async def test_an_issue_starts_on_the_default_branch_and_a_pull_request_on_its_head(house: House) -> None:
    """A first run finds a clean work tree on its session's own branch at the right commit."""
    prepared = await house.enter("issue:1", "gitea-task-1")
    main = house.world.git("rev-parse", "main", cwd=house.author)
    assert (prepared.head, prepared.branch, prepared.continued) == (
        main,
        "refs/heads/turnkeeper/issue-1",
        False,
    )
    assert house.files() == {"README.md": "hello\n", "src/one.txt": "1\n"}
    await house.leave("issue:1", "gitea-task-1")
    pull = house.world.commit(house.author, {"fix": "f"}, "fix", to="refs/pull/7/head")
    prepared = await house.enter("pull_request:7", "gitea-task-2")
    assert (prepared.head, prepared.base, prepared.parked) == (pull, main, None)
    assert house.files()["fix"] == "f"
    assert house.git("rev-parse", "pull/7") == pull
    assert house.git("status", "--porcelain") == ""


async def test_the_same_session_finds_everything_as_it_left_it(house: House) -> None:
    """Commits, staged, unstaged and untracked changes are still there, and nothing was parked."""
    await house.enter("issue:1", "gitea-task-1")
    make_mess(house)
    before, status = house.files(), house.git("status", "--porcelain")
    left = await house.leave("issue:1", "gitea-task-1")
    assert left.dirty
    house.world.commit(house.author, {"upstream": "new"}, "upstream moves")
    prepared = await house.enter("issue:1", "gitea-task-2")
    assert (prepared.continued, prepared.behind, prepared.parked) == (True, True, None)
    assert prepared.head == left.head
    assert (house.files(), house.git("status", "--porcelain")) == (before, status)


def make_mess(house: House) -> None:
    """A commit of its own, a staged change with a further unstaged one, a deletion, and untracked files."""
    (house.path / "own.txt").write_text("committed")
    house.git("add", "own.txt")
    house.git("commit", "--quiet", "-m", "own work")
    (house.path / "README.md").write_text("staged\n")
    house.git("add", "README.md")
    (house.path / "README.md").write_text("staged and more\n")
    (house.path / "src/one.txt").unlink()
    (house.path / "new dir").mkdir()
    (house.path / "new dir/untracked ü").write_text("untracked")


async def test_another_session_finds_a_clean_tree_and_the_first_gets_everything_back(house: House) -> None:
    """Leftovers are parked losslessly on the task's ref and restored, index included, when their session returns."""
    await house.enter("issue:1", "gitea-task-1")
    make_mess(house)
    before, status, head = house.files(), house.git("status", "--porcelain"), house.git("rev-parse", "HEAD")
    await house.leave("issue:1", "gitea-task-1")
    other = await house.enter("issue:2", "gitea-task-2")
    assert house.files() == {"README.md": "hello\n", "src/one.txt": "1\n"}
    assert house.git("status", "--porcelain") == ""
    assert other.parked is not None
    assert (other.parked.ref, other.parked.task_id) == ("refs/turnkeeper/parked/gitea-task-1", "gitea-task-1")
    assert house.git("rev-parse", other.parked.ref) == other.parked.commit
    assert house.git("show", f"{other.parked.ref}:new dir/untracked ü") == "untracked"
    assert house.git("rev-parse", f"{other.parked.ref}^1") == head
    (house.path / "second").write_text("of the second session")
    await house.leave("issue:2", "gitea-task-2")
    back = await house.enter("issue:1", "gitea-task-3")
    assert (back.continued, back.head, back.branch) == (True, head, "refs/heads/turnkeeper/issue-1")
    assert back.parked is not None
    assert (house.files(), house.git("status", "--porcelain")) == (before, status)
    await house.leave("issue:1", "gitea-task-3")
    again = await house.enter("issue:2", "gitea-task-4")
    assert again.continued
    assert house.files()["second"] == "of the second session"
    for task in (1, 2, 3):
        house.git("rev-parse", "--verify", f"refs/turnkeeper/parked/gitea-task-{task}")


async def test_unpublished_commits_alone_come_back_too(house: House) -> None:
    """A session that had committed on a branch of its own making is on that branch again when it returns."""
    await house.enter("issue:1", "gitea-task-1")
    house.git("checkout", "--quiet", "-b", "fix-it")
    (house.path / "own.txt").write_text("committed")
    house.git("add", "-A")
    house.git("commit", "--quiet", "-m", "own")
    left = await house.leave("issue:1", "gitea-task-1")
    assert not left.dirty
    other = await house.enter("issue:2", "gitea-task-2")
    assert other.parked is not None
    assert "own.txt" not in house.files()
    await house.leave("issue:2", "gitea-task-2")
    back = await house.enter("issue:1", "gitea-task-3")
    assert (back.branch, back.head, back.parked) == ("refs/heads/fix-it", left.head, None)


async def test_a_session_without_own_work_moves_on_with_upstream(house: House) -> None:
    """New commits, and a force-pushed pull request, are what a clean session finds."""
    house.world.commit(house.author, {"fix": "1"}, "fix", to="refs/pull/7/head")
    await house.enter("pull_request:7", "gitea-task-1")
    await house.leave("pull_request:7", "gitea-task-1")
    house.world.git("reset", "--quiet", "--hard", "HEAD~1", cwd=house.author)
    forced = house.world.commit(house.author, {"fix": "2"}, "another fix", to="refs/pull/7/head")
    prepared = await house.enter("pull_request:7", "gitea-task-2")
    assert (prepared.head, prepared.continued, prepared.behind) == (forced, True, False)
    assert house.files()["fix"] == "2"
    left = await house.leave("pull_request:7", "gitea-task-2")
    assert not left.dirty


@boxed
@pytest.mark.parametrize("change", ["file", "hidden", "commit", "branch", "stage", "ignored_tracked"])
async def test_changes_that_nobody_recorded_block(house: House, change: str) -> None:
    """Any change between two runs blocks both the same and another session, and is left untouched."""
    house.world.commit(house.author, {".gitignore": "cache\n"}, "ignore")
    await house.enter("issue:1", "gitea-task-1")
    (house.path / "cache").write_text("1")
    house.git("add", "-f", "cache")
    house.git("commit", "--quiet", "-m", "an ignored file that is tracked")
    await house.leave("issue:1", "gitea-task-1")
    if change == "file":
        (house.path / "stranger").write_text("x")
    elif change == "hidden":
        house.git("update-index", "--assume-unchanged", "README.md")
        (house.path / "README.md").write_text("changed behind git's back")
    elif change == "commit":
        house.git("commit", "--quiet", "--allow-empty", "-m", "stranger")
    elif change == "branch":
        house.git("branch", "stranger")
    elif change == "stage":
        house.git("rm", "--quiet", "--cached", "README.md")
    else:
        (house.path / "cache").write_text("2")
    before = house.files()
    for session in ("issue:1", "issue:2"):
        assert reasons(await house.try_to_enter(session, "gitea-task-2")) == ["unknown_changes"]
        assert house.files() == before


@boxed
@pytest.mark.parametrize("state", ["lock", "ref_lock", "merge", "rebase", "conflict"])
async def test_locks_and_operations_in_progress_block(house: House, state: str) -> None:
    """A lock file, a merge, a rebase or a conflict is somebody's business, even for the same session."""
    await house.enter("issue:1", "gitea-task-1")
    found = {"lock": "lock", "ref_lock": "lock", "conflict": "conflict"}.get(state, "in_progress")
    if state == "lock":
        (house.path / ".git/index.lock").write_text("")
    elif state == "ref_lock":
        (house.path / ".git/refs/heads/main.lock").write_text("")
    elif state == "merge":
        (house.path / ".git/MERGE_HEAD").write_text(house.git("rev-parse", "HEAD") + "\n")
    elif state == "rebase":
        (house.path / ".git/rebase-merge").mkdir()
    else:
        blob = house.git("rev-parse", "HEAD:README.md")
        entries = "".join(f"100644 {blob} {stage}\tREADME.md\n" for stage in (1, 2, 3))
        (house.path / "entries").write_text(f"0 {'0' * 40}\tREADME.md\n{entries}")
        house.git("-c", f"alias.fill=!git update-index --index-info < {house.path}/entries", "fill")
    await house.leave("issue:1", "gitea-task-1")
    for session in ("issue:1", "issue:2"):
        assert found in reasons(await house.try_to_enter(session, "gitea-task-2"))


async def test_a_checkout_that_would_overwrite_an_ignored_file_blocks_and_changes_nothing(
    house: House,
) -> None:
    """Even an ignored file is never overwritten; afterwards the recorded session can still go on."""
    await house.enter("issue:1", "gitea-task-1")
    (house.path / ".gitignore").write_text("cache\n")
    (house.path / "cache").write_text("mine")
    left = await house.leave("issue:1", "gitea-task-1")
    house.world.commit(house.author, {"cache": "theirs"}, "tracked upstream")
    before, status = house.files(), house.git("status", "--porcelain")
    assert reasons(await house.try_to_enter("issue:2", "gitea-task-2")) == ["checkout_refused"]
    assert (house.files(), house.git("status", "--porcelain")) == (before, status)
    assert (await house.workspaces.record(KEY, left.session_key, left.task_id)).digest == left.digest
    assert (await house.enter("issue:1", "gitea-task-3")).continued


async def test_files_whose_bytes_git_would_change_are_kept_byte_for_byte(house: House) -> None:
    """Line ends that git normalises, and what a lossy filter drops, are kept exactly in the parked commit."""
    await house.enter("issue:1", "gitea-task-1")
    (house.path / ".gitattributes").write_text("*.txt text eol=lf\n*.big filter=lossy\n")
    house.git("config", "filter.lossy.clean", "echo pointer")
    (house.path / "dos.txt").write_bytes(b"a\r\nb\r\n")
    (house.path / "x.big").write_text("precious")
    await house.leave("issue:1", "gitea-task-1")
    other = await house.enter("issue:2", "gitea-task-2")
    assert other.parked is not None
    parents = house.git("log", "-1", "--format=%P", other.parked.commit).split()
    exact = parents[2]
    assert house.git("cat-file", "-p", f"{exact}:x.big") == "precious"
    assert house.git("cat-file", "-s", f"{exact}:dos.txt") == "6"


async def test_a_repository_inside_the_workspace_is_left_alone_and_reported(house: House) -> None:
    """Git can't take a nested repository in: it stays where it is, and the report says so."""
    await house.enter("issue:1", "gitea-task-1")
    inner = house.path / "vendor"
    house.world.git("init", "--quiet", str(inner))
    (inner / "f").write_text("inner")
    house.world.git("add", "-A", cwd=inner)
    house.world.git("commit", "--quiet", "-m", "inner", cwd=inner)
    await house.leave("issue:1", "gitea-task-1")
    other = await house.enter("issue:2", "gitea-task-2")
    assert other.parked is not None
    assert other.parked.left_in_place == ("vendor",)
    assert (inner / "f").read_text() == "inner"


async def test_what_cannot_be_parked_blocks(house: House) -> None:
    """A nested repository without a commit can't be parked: another session waits, the same goes on."""
    await house.enter("issue:1", "gitea-task-1")
    house.world.git("init", "--quiet", str(house.path / "empty"))
    (house.path / "empty/f").write_text("x")
    await house.leave("issue:1", "gitea-task-1")
    assert reasons(await house.try_to_enter("issue:2", "gitea-task-2")) == ["unparkable"]
    assert (await house.enter("issue:1", "gitea-task-3")).continued


async def test_the_answer_may_be_lost_after_a_change_of_session(house: House) -> None:
    """A preparation whose result never reached the log can be repeated, by the same or another session."""
    await house.enter("issue:1", "gitea-task-1")
    again = await house.enter("issue:1", "gitea-task-1")  # nothing was recorded yet
    assert again.continued
    make_mess(house)
    before = house.files()
    await house.leave("issue:1", "gitea-task-1")
    first = await house.enter("issue:2", "gitea-task-2")
    repeated = await house.enter("issue:2", "gitea-task-2")
    assert (repeated.head, repeated.branch) == (first.head, first.branch)
    await house.enter("issue:3", "gitea-task-3")
    await house.enter("issue:1", "gitea-task-4")
    assert house.files() == before
    (house.path / "late").write_text("of a run that was not recorded")
    assert reasons(await house.try_to_enter("issue:1", "gitea-task-5")) == ["unknown_changes"]


@boxed
@pytest.mark.parametrize("step", ["write_move", "depart", "travel", "settle"])
@pytest.mark.parametrize("then", ["issue:1", "issue:3"])
async def test_a_change_of_session_can_be_killed_after_every_step(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str, then: str
) -> None:
    """Whoever comes next after a kill is brought where it belongs, and the first session's mess comes back whole."""
    await house.enter("issue:2", "gitea-task-0")
    (house.path / "second").write_text("of the second")
    await house.leave("issue:2", "gitea-task-0")
    await house.enter("issue:1", "gitea-task-1")
    make_mess(house)
    before, status = house.files(), house.git("status", "--porcelain")
    await house.leave("issue:1", "gitea-task-1")

    class Killed(BaseException):
        """As if the process had ended here."""

    real = getattr(parking, step)

    async def killed(*arguments: object) -> None:
        await real(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(parking, step, killed)
        with pytest.raises(Killed):
            await house.try_to_enter("issue:2", "gitea-task-2")
    await house.enter(then, "gitea-task-3")
    await house.leave(then, "gitea-task-3")
    await house.enter("issue:2", "gitea-task-4")
    assert house.files()["second"] == "of the second"
    await house.leave("issue:2", "gitea-task-4")
    await house.enter("issue:1", "gitea-task-5")
    assert (house.files(), house.git("status", "--porcelain")) == (before, status)


@boxed
async def test_a_hostile_workspace_runs_nothing_outside_and_reaches_no_secret(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fsmonitor, hooks, filters and links run in the box at most and find no secret there."""
    await house.enter("issue:1", "gitea-task-1")
    secret, outside = tmp_path / "secret", tmp_path / "outside"
    secret.write_text("canary-file")
    outside.mkdir()
    monkeypatch.setenv("TURNKEEPER_SECRET", "canary-env")
    evil = house.path / "evil.sh"
    evil.write_text(
        f'#!/bin/sh\n(env; cat {secret} /proc/[0-9]*/environ; id -u; ls {tmp_path}) >>"$GIT_WORK_TREE/loot" 2>&1\n'
        f"touch {outside}/ran-$$\ncat\n"
    )
    evil.chmod(0o755)
    command = 'sh "$GIT_WORK_TREE/evil.sh"'
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-commit"):
        (house.path / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(evil, house.path / ".git/hooks" / hook)
    for key, value in {
        "core.fsmonitor": command,
        "core.worktree": str(outside),
        "core.alternateRefsCommand": command,
        "core.sshCommand": command,
        "filter.evil.clean": command,
        "filter.evil.smudge": command,
        "diff.external": command,
        "gpg.program": command,
    }.items():
        house.git("config", key, value)
    (house.path / ".gitattributes").write_text("* filter=evil\n")
    (house.path / "link").symlink_to(secret)
    await house.leave("issue:1", "gitea-task-1")
    assert isinstance(await house.try_to_enter("issue:2", "gitea-task-2"), Prepared | Blocked)
    loot = (house.path / "loot").read_text() if (house.path / "loot").exists() else ""
    loot += "".join(
        house.world.git("--git-dir", str(house.path / ".git"), "cat-file", "-p", line.split()[0])
        for line in house.world.git(
            "--git-dir", str(house.path / ".git"), "cat-file", "--batch-all-objects", "--batch-check"
        ).splitlines()
        if line.split()[1] == "blob"
    )
    assert "GIT_WORK_TREE" in loot, "the filter did run, in the box"
    assert "canary" not in loot
    assert TOKEN not in loot
    assert list(outside.iterdir()) == []


async def test_links_in_the_place_of_folders_are_refused(house: House, tmp_path: Path) -> None:
    """A symbolic link instead of an owner's folder, a workspace or its .git is never followed."""
    await house.mirror.ensure(KEY, "acme", "widget")
    (tmp_path / "elsewhere").mkdir()
    house.path.parent.parent.mkdir(parents=True)
    house.path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fault, match="unsafe_path"):
        await house.enter("issue:1", "gitea-task-1")
    house.path.parent.unlink()
    house.path.parent.mkdir()
    house.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fault, match="unsafe_path"):
        await house.enter("issue:1", "gitea-task-1")
    house.path.unlink()
    await house.enter("issue:1", "gitea-task-1")
    await house.leave("issue:1", "gitea-task-1")
    (house.path / ".git").rename(tmp_path / "stolen")
    (house.path / ".git").symlink_to(tmp_path / "stolen")
    assert reasons(await house.try_to_enter("issue:1", "gitea-task-2")) == ["not_a_repository"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_plans_that_do_not_fit_are_refused(house: House) -> None:
    """Unknown refs, foreign sessions, a full disk, a missing workspace and a locked one have their codes."""
    await house.mirror.ensure(KEY, "acme", "widget")
    plan = house.plan("issue:1", "gitea-task-1")
    for code, wrong in (
        ("git_ref_not_found", replace(plan, head_ref="refs/pull/99/head")),
        ("invalid_name", replace(plan, session_key="default:other/repo:issue:1")),
        ("invalid_name", replace(plan, task_id="../../heads/main")),
        ("invalid_name", replace(plan, head_ref="--upload-pack=evil")),
    ):
        with pytest.raises(Fault, match=code):
            await house.workspaces.prepare(wrong)
    with pytest.raises(Fault, match="workspace_missing"):
        await house.workspaces.record(KEY, plan.session_key, plan.task_id)
    house.workspaces._reserve = 1 << 62
    with pytest.raises(Fault, match="disk_full"):
        await house.workspaces.prepare(plan)
    house.workspaces._reserve = 0
    house.workspaces._lock_timeout = 0
    with await lock_workspace(house.path) as lock:
        with pytest.raises(Fault, match="workspace_locked"):
            await house.workspaces.prepare(plan)
        assert isinstance(await house.workspaces.prepare(plan, lock=lock), Prepared)
        await house.workspaces.record(KEY, plan.session_key, plan.task_id, lock=lock)


async def test_a_half_made_workspace_is_made_again(house: House) -> None:
    """What a killed first preparation left beside the workspace's place is removed by the next."""
    half = house.path.parent / ".widget.incoming-0"
    half.mkdir(parents=True)
    (half / "x").write_text("half")
    await house.enter("issue:1", "gitea-task-1")
    assert not half.exists()


@boxed
async def test_submodules_of_upstream_are_neither_fetched_nor_taken_for_changes(house: House) -> None:
    """A repository with a submodule gives a clean, parkable work tree; its address is never asked."""
    elsewhere = house.world.git("rev-parse", "HEAD", cwd=house.author)
    house.world.git("update-index", "--add", "--cacheinfo", f"160000,{elsewhere},lib", cwd=house.author)
    (house.author / ".gitmodules").write_text(
        '[submodule "lib"]\n\tpath = lib\n\turl = http://127.0.0.1:9/lib.git\n'
    )
    house.world.git("add", ".gitmodules", cwd=house.author)
    house.world.git("commit", "--quiet", "-m", "with a submodule", cwd=house.author)
    house.world.git("push", "--quiet", "origin", "HEAD", cwd=house.author)
    await house.enter("issue:1", "gitea-task-1")
    left = await house.leave("issue:1", "gitea-task-1")
    assert not left.dirty
    (house.path / "new").write_text("x")
    await house.leave("issue:1", "gitea-task-1")
    other = await house.enter("issue:2", "gitea-task-2")
    assert other.parked is not None
    assert other.parked.left_in_place == ()
    assert not (await house.leave("issue:2", "gitea-task-2")).dirty


@boxed
async def test_a_filter_that_hangs_meets_the_deadline(house: House) -> None:
    """Git that a workspace's own filter holds up is ended with its box, and the lock is free again."""
    await house.enter("issue:1", "gitea-task-1")
    house.git("config", "filter.slow.clean", "sleep 1000")
    (house.path / ".gitattributes").write_text("* filter=slow\n")
    house.workspaces._deadline = 1
    with pytest.raises(Fault, match="box_timeout"):
        await house.leave("issue:1", "gitea-task-1")
    (await lock_workspace(house.path, 0)).close()


@boxed
async def test_repositories_with_long_ids_work_too(house: House) -> None:
    """A repository of the sha256 format is mirrored, checked out, parked and restored."""
    shutil.rmtree(house.world.root / "acme/widget.git")
    shutil.rmtree(house.author)
    house.world.git("init", "--quiet", "--bare", "-b", "main", "--object-format=sha256", "acme/widget.git")
    house.world.git("init", "--quiet", "-b", "main", "--object-format=sha256", str(house.author))
    house.world.git("remote", "add", "origin", str(house.world.root / "acme/widget.git"), cwd=house.author)
    house.world.commit(house.author, {"a": "1"}, "first")
    assert len((await house.enter("issue:1", "gitea-task-1")).head) == 64
    (house.path / "new").write_text("x")
    await house.leave("issue:1", "gitea-task-1")
    assert (await house.enter("issue:2", "gitea-task-2")).parked is not None
    assert house.files() == {"a": "1"}
    await house.leave("issue:2", "gitea-task-2")
    await house.enter("issue:1", "gitea-task-3")
    assert house.files() == {"a": "1", "new": "x"}


async def test_a_session_whose_branch_another_moved_gets_its_own_commit_back(house: House) -> None:
    """What another session did to a branch is kept, and the branch's owner stands where it stood."""
    await house.enter("issue:1", "gitea-task-1")
    make_mess(house)
    left = await house.leave("issue:1", "gitea-task-1")
    await house.enter("issue:2", "gitea-task-2")
    house.git("commit", "--quiet", "--allow-empty", "-m", "not theirs")
    moved = house.git("rev-parse", "HEAD")
    house.git("branch", "--force", "turnkeeper/issue-1", moved)
    await house.leave("issue:2", "gitea-task-2")
    back = await house.enter("issue:1", "gitea-task-3")
    assert back.head == left.head == house.git("rev-parse", "turnkeeper/issue-1")
    assert house.git("rev-parse", f"refs/turnkeeper/kept/{moved}") == moved


@boxed
@pytest.mark.parametrize("session", ["issue:1", "issue:2"])
async def test_an_unblocked_workspace_is_believed_once_it_is_clean(house: House, session: str) -> None:
    """After somebody looked, a dirty tree blocks again and a clean one is taken, its commits kept."""
    await house.enter("issue:1", "gitea-task-1")
    await house.leave("issue:1", "gitea-task-1")
    (house.path / "stranger").write_text("x")
    await house.mirror.ensure(KEY, "acme", "widget")
    plan = replace(house.plan(session, "gitea-task-2"), unblocked=True)
    assert reasons(await house.workspaces.prepare(plan)) == ["unknown_changes"]
    house.git("add", "-A")
    house.git("commit", "--quiet", "-m", "the operator's")
    commit = house.git("rev-parse", "HEAD")
    assert reasons(await house.workspaces.prepare(replace(plan, unblocked=False))) == ["unknown_changes"]
    prepared = await house.workspaces.prepare(plan)
    assert isinstance(prepared, Prepared)
    if session == "issue:1":
        assert prepared.head == commit
    else:
        assert prepared.parked is not None
        assert house.git("rev-parse", f"{prepared.parked.ref}^1") == commit
        assert "stranger" not in house.files()
