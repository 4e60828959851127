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
from dataclasses import replace
from pathlib import Path

from adapters.box_locks import WorkspaceLock, lock_workspace
from adapters.boxes import Boxes
from adapters.git import parking
from adapters.git.disk import need_space
from adapters.git.in_box import BoxedGit
from adapters.git.mirror import Mirror
from adapters.git.names import SessionName, checked_ref, parked_ref, real_folder, repo_path, session_name
from adapters.git.parking import Parked
from adapters.git.plans import Blocked, Left, Prepared, WorkspacePlan
from adapters.git.snapshots import Finding, look
from adapters.git.visits import Visit, fetch
from domain.faults import Conflict, Invalid, NotFound

__all__ = ["Blocked", "Finding", "Left", "Parked", "Prepared", "WorkspacePlan", "Workspaces"]


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
            visit = Visit(self._git(path, plan.repo_key, held), plan, name, upstream)
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
