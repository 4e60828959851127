"""Workspaces: one per repository, one session in it at a time, nothing ever lost.

The rules are those of the workflow page, "Mirror and workspace". What a run leaves is recorded (``record``), and the
log keeps it. The next run of the same session goes on in it; a run of another session finds its own state instead,
the leftovers being parked on ``refs/turnkeeper/parked/<taskId>`` and restored when their session returns. Each
session has a branch of its own, ``turnkeeper/<kind>-<number>``. Whatever nobody recorded blocks: there is no reset
and no clean here.

Refs in a workspace: ``origin/*`` and ``pull/N`` follow the mirror; those under ``refs/turnkeeper/`` (``base``,
``session``, ``parked``, ``kept``, ``move``) are ours and not part of the digest.

Honest limits: ignored files and nested repositories stay in place for the next session; a change of session that
is killed in the middle of git's own checkout leaves ``index.lock`` and so blocks until somebody looks.
"""

import contextlib
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.box_locks import WorkspaceLock, lock_workspace
from adapters.boxes import Boxes
from adapters.git import parking
from adapters.git.disk import need_space
from adapters.git.in_box import BoxedGit, GitRefused
from adapters.git.mirror import Mirror
from adapters.git.names import SessionName, checked_ref, parked_ref, real_folder, repo_path, session_name
from adapters.git.parking import Move, Origin, Parked
from adapters.git.snapshots import Finding, Snapshot, look
from domain.faults import Conflict, Invalid, NotFound

__all__ = ["Blocked", "Finding", "Left", "Parked", "Prepared", "WorkspacePlan", "Workspaces"]


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a run left; the caller's log keeps it. ``branch`` is a full ref, empty when detached."""

    session_key: str
    task_id: str
    head: str
    branch: str
    digest: str
    dirty: bool


@dataclass(frozen=True, kw_only=True)
class WorkspacePlan:
    """A run to prepare for. Issue: both refs are the default branch; pull request: ``refs/pull/N/head``, its base."""

    repo_key: str
    session_key: str
    task_id: str
    base_ref: str
    head_ref: str
    previous: Left | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workspace that is ready.

    ``continued``: the session finds its former state. ``behind``: upstream has moved, and the session's own work
    was left where it is. ``base``, ``upstream``: commits of the plan's refs.
    """

    path: Path
    head: str
    branch: str
    base: str | None
    upstream: str
    continued: bool
    behind: bool
    parked: Parked | None = None


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Somebody must look: nothing was changed. ``reasons`` say what was found."""

    reasons: tuple[Finding, ...]


class Workspaces:
    """All workspaces under ``root``. ``deadline``: seconds for one boxed command; ``reserve``: bytes to stay free."""

    def __init__(
        self,
        root: Path,
        mirror: Mirror,
        boxes: Boxes,
        *,
        deadline: float = 300.0,
        reserve: int = 1024 * 1024 * 1024,
        lock_timeout: float = 10.0,
    ) -> None:
        self.root = root
        self._mirror = mirror
        self._boxes = boxes
        self._deadline = deadline
        self._reserve = reserve
        self._lock_timeout = lock_timeout

    def path(self, repo_key: str) -> Path:
        """``<root>/default/<owner>/<repo>``; its lock is ``adapters.box_locks.lock_workspace`` of it."""
        return repo_path(self.root, repo_key)

    async def record(
        self, repo_key: str, session_key: str, task_id: str, *, lock: WorkspaceLock | None = None
    ) -> Left:
        """Look at what a run left (also one that was killed, once its box is dead).

        Raises ``NotFound`` (``workspace_missing``), ``workspace_git_failed``, ``workspace_locked``, ``box_…``.
        """
        session_name(session_key)
        parked_ref(task_id)
        async with self._locked(repo_key, lock) as held:
            path = self._existing(repo_key)
            if path is None:
                raise NotFound("There is no workspace for this repository.", code="workspace_missing")
            state = await look(self._git(path, repo_key, held))
        return Left(
            session_key=session_key,
            task_id=task_id,
            head=state.head,
            branch=state.branch,
            digest=state.digest,
            dirty=state.dirty,
        )

    async def prepare(self, plan: WorkspacePlan, *, lock: WorkspaceLock | None = None) -> Prepared | Blocked:
        """Bring the workspace to where the plan's session works, from an up-to-date mirror.

        Safe to repeat after a crash at any point. Raises ``disk_full``, ``git_ref_not_found`` (the head ref is not
        in the mirror), ``invalid_name``, ``unsafe_path``, ``workspace_locked``, ``workspace_git_failed``, ``box_…``.
        """
        name = session_name(plan.session_key)
        parked_ref(plan.task_id)
        if name.repo_key != plan.repo_key:
            raise Invalid("The session belongs to another repository.", code="invalid_name")
        upstream = await self._mirror.head(plan.repo_key, plan.head_ref)
        base = await self._mirror.head(plan.repo_key, plan.base_ref)
        if upstream is None:
            raise NotFound(
                "The repository has no such branch or pull request.",
                code="git_ref_not_found",
                params={"ref": checked_ref(plan.head_ref)},
            )
        async with self._locked(plan.repo_key, lock) as held:
            need_space(self.root, self._reserve)
            path = self._existing(plan.repo_key)
            if path is None:
                return await self._create(plan, name, upstream, base, held)
            if not (path / ".git").is_dir() or (path / ".git").is_symlink():
                return Blocked(reasons=(Finding(code="not_a_repository"),))
            visit = _Visit(self._git(path, plan.repo_key, held), plan, name, upstream)
            outcome = await visit.run()
        if isinstance(outcome, Prepared):
            return replace(outcome, path=path, base=base)
        return outcome

    def _existing(self, repo_key: str) -> Path | None:
        path = self.path(repo_key)
        real_folder(self.root, path.parent)
        if path.is_symlink():
            raise Conflict("A symbolic link stands where a workspace belongs.", code="unsafe_path")
        return path if path.is_dir() else None

    def _git(self, path: Path, repo_key: str, lock: WorkspaceLock) -> BoxedGit:
        return BoxedGit(self._boxes, path, self._mirror.path(repo_key), lock, deadline=self._deadline)

    @contextlib.asynccontextmanager
    async def _locked(self, repo_key: str, lock: WorkspaceLock | None) -> AsyncIterator[WorkspaceLock]:
        """The caller's lock, or one of our own for as long as this call takes."""
        if lock is not None:
            yield lock
            return
        path = self.path(repo_key)
        real_folder(self.root, path.parent)
        with await lock_workspace(path, self._lock_timeout) as own:
            yield own

    async def _create(
        self, plan: WorkspacePlan, name: SessionName, upstream: str, base: str | None, lock: WorkspaceLock
    ) -> Prepared:
        """Make the workspace beside its place and rename it, so that a half one never exists."""
        path = self.path(plan.repo_key)
        for half in path.parent.glob(f".{path.name}.incoming-*"):
            shutil.rmtree(half, ignore_errors=True)
        incoming = path.parent / f".{path.name}.incoming-{uuid.uuid4().hex}"
        incoming.mkdir(mode=0o700)
        try:
            git = self._git(incoming, plan.repo_key, lock)
            await git.git("init", "--quiet", f"--object-format={'sha256' if len(upstream) == 64 else 'sha1'}")
            await fetch(git, plan.head_ref)
            await parking.travel(git, upstream)
            await parking.settle(git, upstream, name.branch)
            await git.git("update-ref", parking.base_ref(name), upstream)
            incoming.rename(path)
        except BaseException:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        return Prepared(
            path=path,
            head=upstream,
            branch=name.branch,
            base=base,
            upstream=upstream,
            continued=False,
            behind=False,
        )


async def fetch(git: BoxedGit, head_ref: str) -> None:
    """Take over what the mirror has: its branches as ``origin/*``, one pull request's head as ``pull/N``."""
    wanted = ["+refs/heads/*:refs/remotes/origin/*"]
    parts = head_ref.split("/")
    if parts[1] == "pull":
        wanted.append(f"+{checked_ref(head_ref)}:refs/remotes/pull/{parts[2]}")
    options = "--quiet --prune --no-tags --force --no-write-fetch-head --no-recurse-submodules"
    script = f'exec git fetch {options} -- "$MIRROR" "$@"'
    done = await git.script(script, *wanted)
    if done.rc != 0:
        raise GitRefused("fetch", done)


class _Visit:
    """One preparation of an existing workspace."""

    def __init__(self, git: BoxedGit, plan: WorkspacePlan, name: SessionName, upstream: str) -> None:
        self._git = git
        self._plan = plan
        self._name = name
        self._upstream = upstream
        self._standing_at: str | None = None  # the parked commit whose files a killed change left in place

    async def run(self) -> Prepared | Blocked:
        state = await look(self._git)
        if state.findings:
            return Blocked(reasons=state.findings)
        present = await self._present(state)
        if isinstance(present, Blocked):
            return present
        await fetch(self._git, self._plan.head_ref)
        if present.session_key == self._plan.session_key and (present.digest == state.digest):
            return await self._continue(state)
        return await self._change(state, present)

    async def _present(self, state: Snapshot) -> Left | Blocked:
        """Whose state this is: the recorded one, one that our own killed change of session made, or unknown."""
        previous = self._plan.previous
        recorded = previous.digest if previous is not None else ""
        if previous is not None and recorded == state.digest:
            return previous
        move = await parking.read_move(self._git, state)
        if move is not None and move.origin == recorded:
            mine = Left(
                session_key=move.session_key,
                task_id=move.task_id,
                head=state.head,
                branch=state.branch,
                digest=state.digest,
                dirty=state.dirty,
            )
            if move.reached == state.digest:
                return mine
            if not move.reached and previous is not None and await self._under_way(state, previous, move):
                return replace(previous, digest="")
        if (
            previous is None
            and not state.dirty
            and state.branches == 1
            and state.head == self._base_of(state)
        ):
            return Left(
                session_key=self._session_on(state),
                task_id=self._plan.task_id,
                head=state.head,
                branch=state.branch,
                digest=state.digest,
                dirty=False,
            )
        code = "unknown_changes" if previous is not None else "unrecorded_workspace"
        return Blocked(reasons=(Finding(code=code, detail=f"head {state.head[:12]}, branch {state.branch}"),))

    async def _under_way(self, state: Snapshot, previous: Left, move: Move) -> bool:
        """Whether a killed change of session left this: all that was there is parked, and no file is unknown."""
        parked = state.refs.get(parked_ref(previous.task_id))
        origin = await parking.origin_of(self._git, parked) if parked else None
        if previous.dirty and (origin is None or origin.digest != previous.digest):
            return False
        if not state.dirty:
            return True
        waiting = state.refs.get(parking.session_ref(session_name(move.session_key)))
        for commit in (parked, waiting):
            if commit and state.tree == await self._git.git("rev-parse", f"{commit}^{{tree}}"):
                self._standing_at = commit
                return True
        return False

    def _session_on(self, state: Snapshot) -> str:
        """The session whose branch is checked out, empty if it is none's."""
        label = state.branch.removeprefix("refs/heads/turnkeeper/")
        kind, _, number = label.rpartition("-")
        return f"{self._plan.repo_key}:{kind.replace('-', '_')}:{number}" if label != state.branch else ""

    def _base_of(self, state: Snapshot) -> str | None:
        label = state.branch.removeprefix("refs/heads/turnkeeper/")
        return state.refs.get(f"refs/turnkeeper/base/{label}") if label != state.branch else None

    async def _is_behind(self, head: str) -> bool:
        done = await self._git.script('git merge-base --is-ancestor "$1" "$2"', self._upstream, head)
        return done.rc != 0

    async def _continue(self, state: Snapshot) -> Prepared | Blocked:
        """The same session: its own work stays; without any, it moves on with upstream."""
        waiting = state.refs.pop(parking.session_ref(self._name), None)
        if (
            waiting is not None
        ):  # parked by a change of session that then did not happen; its own ref keeps it
            await self._git.git("update-ref", "-d", parking.session_ref(self._name), waiting)
        own = state.dirty or state.branch != self._name.branch or state.head != self._base_of(state)
        if own or state.head == self._upstream:
            return self._ready(
                state.head, state.branch, continued=True, behind=await self._is_behind(state.head)
            )
        return await self._arrive(state, None, undo=None)

    async def _change(self, state: Snapshot, present: Left) -> Prepared | Blocked:
        """Another session: park what is there, then go where this session works."""
        under_way = not present.digest
        theirs = session_name(present.session_key)
        ref = parked_ref(present.task_id)
        parked = None
        undo = None
        own = state.dirty or state.branch != theirs.branch or state.head != self._base_of(state)
        if under_way:
            commit = state.refs.get(ref)
            if commit:
                parked = Parked(
                    ref=ref, commit=commit, session_key=present.session_key, task_id=present.task_id
                )
            if self._standing_at is not None:
                await parking.depart(self._git, self._standing_at)
        elif own:
            if state.unreadable:
                return Blocked(reasons=(Finding(code="unparkable", detail=state.unreadable),))
            origin = Origin(
                session_key=present.session_key,
                task_id=present.task_id,
                head=state.head,
                branch=state.branch,
                index=state.index_tree,
                digest=state.digest,
            )
            commit = await parking.park(self._git, state, ref, theirs, origin)
            parked = Parked(
                ref=ref,
                commit=commit,
                session_key=present.session_key,
                task_id=present.task_id,
                left_in_place=state.nested,
            )
            undo = origin
        return await self._arrive(state, parked, undo=undo)

    async def _arrive(
        self, state: Snapshot, parked: Parked | None, *, undo: Origin | None
    ) -> Prepared | Blocked:
        """Leave a trace, move the files by git's own careful checkout, put head and index where they belong."""
        previous = self._plan.previous
        move = Move(
            origin=previous.digest if previous is not None else "",
            session_key=self._plan.session_key,
            task_id=self._plan.task_id,
        )
        await parking.write_move(self._git, move)
        waiting = state.refs.get(parking.session_ref(self._name))
        origin = await parking.origin_of(self._git, waiting) if waiting else None
        if parked is not None and undo is not None and state.dirty:
            await parking.depart(self._git, parked.commit)
        try:
            await parking.travel(self._git, waiting if waiting and origin else self._upstream)
        except GitRefused as refused:
            if undo is not None and state.dirty:
                await parking.settle(self._git, undo.head, undo.branch, undo.index)
            return Blocked(reasons=(Finding(code="checkout_refused", detail=refused.said),))
        if waiting and origin:
            await parking.settle(self._git, origin.head, origin.branch, origin.index)
            head, branch = origin.head, origin.branch
        else:
            await parking.settle(self._git, self._upstream, self._name.branch)
            await self._git.git("update-ref", parking.base_ref(self._name), self._upstream)
            head, branch = self._upstream, self._name.branch
        reached = await look(self._git)
        await parking.write_move(self._git, replace(move, reached=reached.digest))
        if waiting:
            await self._git.git("update-ref", "-d", parking.session_ref(self._name), waiting)
        behind = await self._is_behind(head)
        continued = origin is not None or parking.base_ref(self._name) in state.refs
        return replace(self._ready(head, branch, continued=continued, behind=behind), parked=parked)

    def _ready(self, head: str, branch: str, *, continued: bool, behind: bool) -> Prepared:
        return Prepared(
            path=Path(),
            head=head,
            branch=branch,
            base=None,
            upstream=self._upstream,
            continued=continued,
            behind=behind,
        )
