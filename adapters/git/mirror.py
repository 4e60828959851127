"""Trusted bare mirrors: the only place that credentials touch (workflow page, "Mirror and workspace").

A mirror is cloned into a temporary folder and renamed, so that a half one never exists under its name. It holds
branches, tags and the heads of pull requests; its configuration names no address. Whatever a killed clone or fetch
left behind is removed by the next one, under a lock that git itself inherits and so never outlives.
"""

import contextlib
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from adapters.box_locks import WorkspaceLock, lock_workspace
from adapters.git.command import GitCommand
from adapters.git.disk import need_space
from adapters.git.names import checked_ref, gitea_name, real_folder, repo_path
from domain.faults import Conflict

_REFSPECS = (
    "+refs/heads/*:refs/heads/*",
    "+refs/tags/*:refs/tags/*",
    "+refs/pull/*/head:refs/pull/*/head",
)


@dataclass(frozen=True, kw_only=True)
class MirrorState:
    """A mirror after a fetch: where it lies, the repository's default branch (None while it is empty)."""

    path: Path
    default_branch: str | None
    cloned: bool


class Mirror:
    """All mirrors under ``root``. ``base_url`` is the configured Gitea; names are appended, nothing else.

    ``deadline``: seconds for one fetch or clone. ``reserve``: bytes that must stay free on the disk.
    """

    def __init__(
        self,
        root: Path,
        base_url: str,
        token: str,
        *,
        deadline: float = 600.0,
        reserve: int = 1024 * 1024 * 1024,
        git: GitCommand | None = None,
    ) -> None:
        self.root = root
        self._base = base_url.rstrip("/")
        self._token = token or None
        self._deadline = deadline
        self._reserve = reserve
        self._git = git or GitCommand(root / ".home")

    def path(self, repo_key: str) -> Path:
        """Where the mirror of a repository lies."""
        return repo_path(self.root, repo_key, suffix=".git")

    async def ensure(self, repo_key: str, owner: str, name: str) -> MirrorState:
        """Clone the mirror, or fetch what is new; gone branches are pruned.

        Raises ``invalid_name``, ``disk_full``, ``workspace_locked`` (another fetch of it takes too long), and the
        faults of ``GitCommand.run``. A failed fetch leaves the mirror as usable as it was.
        """
        path = self.path(repo_key)
        url = self._url(owner, name)
        real_folder(self.root, path.parent)
        need_space(self.root, self._reserve)
        with await lock_workspace(path, self._deadline) as lock:
            self._remove_leftovers(path)
            if path.is_symlink():
                raise Conflict("A symbolic link stands where a mirror belongs.", code="unsafe_path")
            if path.is_dir():
                branch = await self._fetch(path, url, lock)
                return MirrorState(path=path, default_branch=branch, cloned=False)
            return MirrorState(path=path, default_branch=await self._clone(path, url, lock), cloned=True)

    async def head(self, repo_key: str, ref: str) -> str | None:
        """The commit that a full ref (``refs/heads/main``, ``refs/pull/7/head``) stood at when last fetched."""
        path = self.path(repo_key)
        if not path.is_dir():
            return None
        found = await self._git.run(
            "--git-dir",
            str(path),
            "rev-parse",
            "--verify",
            "--quiet",
            f"{checked_ref(ref)}^{{commit}}",
            ok=(0, 1),
        )
        return found.text.strip() or None

    async def default_branch(self, repo_key: str) -> str | None:
        """The default branch as of the last fetch, None for an empty or unknown repository."""
        path = self.path(repo_key)
        if not path.is_dir():
            return None
        found = await self._git.run("--git-dir", str(path), "symbolic-ref", "--short", "HEAD", ok=(0, 1, 128))
        branch = found.text.strip()
        return branch if branch and await self.head(repo_key, f"refs/heads/{branch}") else None

    @property
    def command(self) -> GitCommand:
        """The guarded git of these mirrors, without the credential."""
        return self._git

    @contextlib.asynccontextmanager
    async def locked(self, repo_key: str) -> AsyncIterator[WorkspaceLock]:
        """Keep others from fetching into a mirror; raises ``workspace_locked``."""
        with await lock_workspace(self.path(repo_key), self._deadline) as lock:
            yield lock

    async def push(
        self, repository: Path, owner: str, name: str, commit: str, ref: str, *, lock: WorkspaceLock
    ) -> str | None:
        """Push a commit of a trusted repository to a ref of Gitea, never by force.

        None: it stands there. A text: Gitea refused, and these were its words (untrusted, bounded). Raises what
        ``GitCommand.run`` raises; then it may or may not stand there.
        """
        done = await self._git.run(
            "--git-dir",
            str(repository),
            "push",
            "--porcelain",
            "--no-verify",
            "--no-follow-tags",
            "--recurse-submodules=no",
            "--",
            self._url(owner, name),
            f"{commit}:{checked_ref(ref)}",
            token=self._token,
            deadline=self._deadline,
            keep=[lock.fileno()],
            ok=(0, 1),
        )
        if done.rc == 0:
            return None
        refusals = [line for line in done.text.splitlines() if line.startswith("!")]
        said = [line for line in done.err.splitlines() if line.startswith("remote:")]
        return "\n".join([*said[:20], *(line.rpartition("\t")[2] for line in refusals[:1])])[:2000]

    async def remote_ref(self, owner: str, name: str, ref: str) -> str | None:
        """Where a ref stands in Gitea right now, None if it is not there."""
        done = await self._git.run(
            "ls-remote",
            "--",
            self._url(owner, name),
            checked_ref(ref),
            token=self._token,
            deadline=self._deadline,
        )
        found = [line.split("\t") for line in done.text.splitlines()]
        return next((parts[0] for parts in found if parts[1:] == [ref]), None)

    def _url(self, owner: str, name: str) -> str:
        return f"{self._base}/{gitea_name(owner)}/{gitea_name(name)}.git"

    async def _clone(self, path: Path, url: str, lock: WorkspaceLock) -> str | None:
        incoming = path.parent / f".{path.name}.incoming-{uuid.uuid4().hex}"
        try:
            form = await self._object_format(url, lock)
            await self._git.run(
                "init", "--quiet", "--bare", f"--object-format={form}", str(incoming), keep=[lock.fileno()]
            )
            branch = await self._fetch(incoming, url, lock)
            incoming.rename(path)
        except BaseException:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        return branch

    async def _object_format(self, url: str, lock: WorkspaceLock) -> str:
        """``sha256`` where the remote's ids are that long; an empty one is taken for ``sha1``."""
        told = await self._remote_head(url, lock)
        return "sha256" if len(told.partition("\t")[0]) == 64 else "sha1"

    async def _remote_head(self, url: str, lock: WorkspaceLock) -> str:
        """The line with the id of the remote's head, then the one that names its branch."""
        done = await self._git.run(
            "ls-remote",
            "--symref",
            "--",
            url,
            "HEAD",
            token=self._token,
            deadline=self._deadline,
            keep=[lock.fileno()],
        )
        return "\n".join(sorted(done.text.splitlines(), key=lambda line: line.startswith("ref:")))

    async def _fetch(self, path: Path, url: str, lock: WorkspaceLock) -> str | None:
        await self._git.run(
            "--git-dir",
            str(path),
            "fetch",
            "--quiet",
            "--prune",
            "--no-tags",
            "--force",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--",
            url,
            *_REFSPECS,
            token=self._token,
            deadline=self._deadline,
            keep=[lock.fileno()],
        )
        for line in (await self._remote_head(url, lock)).splitlines():
            if line.startswith("ref: refs/heads/") and line.endswith("\tHEAD"):
                ref = checked_ref(line.removeprefix("ref: ").removesuffix("\tHEAD"))
                await self._git.run("--git-dir", str(path), "symbolic-ref", "HEAD", ref)
                return ref.removeprefix("refs/heads/")
        return None

    def _remove_leftovers(self, path: Path) -> None:
        """What a killed git left: half clones, lock files, half packs. Our lock says that no git runs here."""
        for half in path.parent.glob(f".{path.name}.incoming-*"):
            shutil.rmtree(half, ignore_errors=True)
        if path.is_symlink() or not path.is_dir():
            return
        for pattern in ("*.lock", "refs/**/*.lock", "objects/**/tmp_*", "objects/info/*.lock"):
            for left in path.glob(pattern):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
