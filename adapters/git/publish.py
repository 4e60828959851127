"""Publishing what the agent committed: from its workspace, through the trusted side, to a branch of its task.

The commits leave the workspace as a bundle, made in a box that has no credential and may only read. The trusted side
believes nothing of it: git verifies the bundle, checks every object strictly, and every link down to what Gitea
already has, in a repository that lives for this call only and borrows the mirror's objects. There the commits get
the bot as author and committer (``domain.publications``). Then they are pushed: never by force, never to the default
branch, never under another name. What is in the mirror is what Gitea has, since the mirror was fetched just before.

Honest limits: what files contain is the agent's affair (also workflow files, which Gitea's runners would execute).
"""

import asyncio
import contextlib
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from adapters.box_locks import WorkspaceLock
from adapters.box_spec import WORKSPACE, Bind, BoxFile, BoxSpec
from adapters.boxes import Boxes
from adapters.git.command import GitCommand
from adapters.git.in_box import GITCONFIG, GITCONFIG_TEXT, MIRROR, GitRefused, git_environment
from adapters.git.mirror import Mirror
from adapters.git.names import checked_ref
from domain.faults import Conflict, Fault, Forbidden, Invalid, NotFound
from domain.publications import PublishOrder, object_id, parents_of, rewritten

_OUT = "/run/turnkeeper/out"
_HEADER_LIMIT = 1024 * 1024
_SCRIPT = """
head=$(git rev-parse -q --verify 'HEAD^{commit}' || :)
[ -n "$head" ] || exit 0
echo "new $(git rev-list --count HEAD --not --alternate-refs)"
echo "uncommitted $(git status --porcelain --untracked-files=normal | head -n 1000 | wc -l)"
[ "$(git rev-list -n 1 HEAD --not --alternate-refs)" = "" ] ||
    git bundle create --quiet - HEAD --not --alternate-refs | head -c "$2" >"$1"
"""
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Publication:
    """Commits that are ready to be pushed; ``present``: where the branch stands in Gitea (None: it is not there)."""

    def __init__(
        self, hands: "_Hands", *, head: str, commits: int, uncommitted: int, default_branch: str
    ) -> None:
        self._hands = hands
        self.head = head
        self.commits = commits
        self.uncommitted = uncommitted
        self.present = hands.present
        self.default_branch = default_branch

    async def push(self) -> None:
        """Push; an answer that was lost is made good by looking where the branch stands.

        Raises ``Conflict`` (``branch_moved``), ``Forbidden`` (``branch_protected``, ``push_refused``,
        ``git_auth_failed``), ``Fault`` (``push_failed``: looked, and it is not there), ``Unavailable`` (not known).
        """
        await self._hands.push(self.head)


class BranchPublisher:
    """Publishes from one workspace of one repository. ``deadline``: seconds for one command in the box."""

    def __init__(self, mirror: Mirror, boxes: Boxes, *, deadline: float = 120.0) -> None:
        self._mirror = mirror
        self._boxes = boxes
        self._deadline = deadline

    @contextlib.asynccontextmanager
    async def publication(
        self, repo_key: str, owner: str, name: str, workspace: Path, order: PublishOrder
    ) -> AsyncIterator[Publication]:
        """Prepare what the workspace's head has and Gitea has not; push it inside the context.

        Raises ``nothing_to_publish``, ``branch_moved``, ``branch_refused`` (the default branch),
        ``publication_too_large``, ``publication_refused`` (what the workspace gave is no sound history),
        ``commit_malformed``, and the faults of the mirror, git and the box.
        """
        ref = checked_ref(f"refs/heads/{order.branch}")
        state = await self._mirror.ensure(repo_key, owner, name)
        if state.default_branch is None or order.branch.lower() == state.default_branch.lower():
            raise Forbidden("The default branch is not for publishing to.", code="branch_refused")
        async with self._mirror.locked(repo_key) as lock:
            present = await self._mirror.head(repo_key, ref)
            mirror = self._mirror.path(
                repo_key
            )  # whatever a killed service leaves there, the next fetch removes
            scratch = Path(tempfile.mkdtemp(prefix=f".{mirror.name}.incoming-", dir=mirror.parent))
            try:
                told = await self._bundle(workspace, scratch, repo_key, order)
                hands = _Hands(
                    self._mirror, repo_key, scratch, lock, remote=(owner, name, ref), present=present
                )
                head, commits = await hands.take_in(scratch / "bundle", order)
                yield Publication(
                    hands,
                    head=head,
                    commits=commits,
                    uncommitted=told.get("uncommitted", 0),
                    default_branch=state.default_branch,
                )
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    async def _bundle(
        self, workspace: Path, scratch: Path, repo_key: str, order: PublishOrder
    ) -> dict[str, int]:
        """Let a box write the bundle; everything that it says is only a hint for people."""
        spec = BoxSpec(
            argv=(
                "/bin/sh",
                "-c",
                "set -eu\n" + _SCRIPT,
                "turnkeeper",
                f"{_OUT}/bundle",
                str(order.max_bytes + 1),
            ),
            cwd=WORKSPACE,
            binds=(
                Bind(source=workspace, target=WORKSPACE),
                Bind(source=self._mirror.path(repo_key), target=MIRROR),
                Bind(source=scratch, target=_OUT, writable=True),
            ),
            files=(BoxFile(target=GITCONFIG, content=GITCONFIG_TEXT, mode=0o644),),
            env=git_environment()
            | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{MIRROR}/objects", "GIT_NO_REPLACE_OBJECTS": "1"},
        )
        done = await self._boxes.run(spec, self._deadline, max_output=64 * 1024)
        if done.rc != 0:
            raise GitRefused("bundle", done)
        words = [line.partition(" ") for line in done.text.splitlines()]
        told = {key: int(value) for key, _, value in words if value.strip().isdigit() and len(value) < 10}
        if not told.get("new"):
            raise Conflict(
                "There is nothing to publish: the workspace's head holds no commit that Gitea does not have.",
                code="nothing_to_publish",
                params={"uncommitted": told.get("uncommitted", 0)},
            )
        return told


class _Hands:
    """The trusted side of one publication: a bare repository for this call, and the push."""

    def __init__(
        self,
        mirror: Mirror,
        repo_key: str,
        scratch: Path,
        lock: WorkspaceLock,
        *,
        remote: tuple[str, str, str],
        present: str | None,
    ) -> None:
        self._mirror = mirror
        self._path = mirror.path(repo_key)
        self._repository = scratch / f"trusted-{uuid.uuid4().hex}"
        self._lock = lock
        self._remote = remote
        self.present = present

    @property
    def _command(self) -> GitCommand:
        return self._mirror.command

    async def _git(self, *arguments: str, **more: object) -> str:
        done = await self._command.run(
            "--git-dir",
            str(self._repository),
            *arguments,
            keep=[self._lock.fileno()],
            **more,  # type: ignore[arg-type]
        )
        return done.text.strip()

    async def take_in(self, bundle: Path, order: PublishOrder) -> tuple[str, int]:
        """Verify the bundle, rewrite its commits; the new head and how many commits are new to Gitea."""
        form = (
            await self._command.run("--git-dir", str(self._path), "rev-parse", "--show-object-format")
        ).text.strip()
        await self._command.run("init", "--quiet", "--bare", f"--object-format={form}", str(self._repository))
        alternates = self._repository / "objects" / "info" / "alternates"
        alternates.write_text(f"{self._path.absolute() / 'objects'}\n", encoding="utf-8")
        descriptor = _opened(bundle, order.max_bytes)
        try:
            try:
                await self._git("bundle", "verify", "--quiet", str(bundle))
                head = _header(descriptor)
                await self._git(
                    "index-pack",
                    "--strict",
                    "--fix-thin",
                    "--stdin",
                    f"--max-input-size={order.max_bytes}",
                    stdin=descriptor,
                )
                await self._git("rev-list", "--objects", "--quiet", head, "--not", "--alternate-refs")
            except Fault as fault:
                if fault.code != "git_failed":
                    raise
                raise Invalid(
                    "What the workspace holds is not a sound history: git refused it. Make clean commits on top of "
                    "the branch that you started from.",
                    code="publication_refused",
                ) from None
        finally:
            os.close(descriptor)
        commits = await self._new_commits(head, order)
        made = await self._rewrite(commits, order)
        new = made[head]
        if self.present is not None and self.present != new and not await self._contains(new, self.present):
            raise moved(order.branch)
        return new, len(commits)

    async def _new_commits(self, head: str, order: PublishOrder) -> Sequence[str]:
        new = ("rev-list", "--topo-order", "--reverse")
        count = int(await self._git("rev-list", "--count", head, "--not", "--alternate-refs"))
        if count > order.max_commits:
            raise _too_large(f"{count} commits, at most {order.max_commits}")
        if count == 0:
            raise Conflict("There is nothing to publish.", code="nothing_to_publish")
        return (await self._git(*new, head, "--not", "--alternate-refs")).split()

    async def _rewrite(self, commits: Sequence[str], order: PublishOrder) -> dict[str, str]:
        folder = self._repository / "made"
        folder.mkdir()
        made: dict[str, str] = {}
        for number, (old, raw) in enumerate((await self._read(commits)).items()):
            if any(_ID.fullmatch(parent) is None for parent in parents_of(raw)):
                raise Invalid("A commit names a parent that is none.", code="commit_malformed")
            content = rewritten(raw, made, order)
            made[old] = object_id("commit", content, like=old)
            (folder / str(number)).write_bytes(content)
        names = [str(number) for number in range(len(commits))]
        written = await self._git(
            "hash-object", "-t", "commit", "-w", "--no-filters", "--", *names, cwd=folder
        )
        if written.split() != list(made.values()):
            raise Fault("git names the commits otherwise than this service does.", code="git_failed")
        return made

    async def _read(self, commits: Sequence[str]) -> dict[str, bytes]:
        """The raw commits, in this order."""
        asked = os.memfd_create("commits", os.MFD_CLOEXEC)
        try:
            os.write(asked, "".join(f"{commit}\n" for commit in commits).encode())
            os.lseek(asked, 0, os.SEEK_SET)
            done = await self._command.run(
                "--git-dir", str(self._repository), "cat-file", "--batch", stdin=asked
            )
        finally:
            os.close(asked)
        found: dict[str, bytes] = {}
        rest = done.out
        for commit in commits:
            line, _, rest = rest.partition(b"\n")
            told, kind, size = line.decode("ascii").split(" ")
            if told != commit or kind != "commit":
                raise Fault("git answered with another object.", code="git_failed")
            found[commit], rest = rest[: int(size)], rest[int(size) + 1 :]
        return found

    async def _contains(self, new: str, old: str) -> bool:
        done = await self._command.run(
            "--git-dir", str(self._repository), "merge-base", "--is-ancestor", old, new, ok=(0, 1)
        )
        return done.rc == 0

    async def push(self, head: str) -> None:
        """See ``Publication.push``."""
        owner, name, ref = self._remote
        try:
            said = await self._mirror.push(self._repository, owner, name, head, ref, lock=self._lock)
        except Fault as fault:
            if fault.code not in ("git_timeout", "git_unreachable", "git_failed"):
                raise
            if await self._mirror.remote_ref(owner, name, ref) == head:
                return
            raise Fault(
                "The push did not arrive: the branch does not stand there. Call publish_branch again.",
                code="push_failed",
            ) from None
        if said is not None:
            _refuse(said, ref.removeprefix("refs/heads/"))


def moved(branch: str) -> Conflict:
    """Somebody else's commits are on the branch."""
    return Conflict(
        f"The branch {branch} in Gitea holds commits that your head does not contain: somebody has pushed to it, or"
        " you have rewritten what was published. Nothing is ever forced. Leave the branch as it is, and say in your"
        f" comment what happened; the next turn finds what is there as origin/{branch}.",
        code="branch_moved",
    )


def _refuse(said: str, branch: str) -> None:
    if re.search(r"protected branch", said, re.IGNORECASE):
        raise Forbidden(
            f"Gitea protects the branch {branch}: this account may not push to it. Say so in your comment; an"
            " administrator of the repository can change the rule.",
            code="branch_protected",
        )
    if re.search(r"non-fast-forward|fetch first|stale info|cannot lock ref", said):
        raise moved(branch)
    words = " ".join(line.removeprefix("remote:").strip() for line in said.splitlines()).split()
    raise Forbidden(f"Gitea refused the push: {' '.join(words)[:300]}", code="push_refused")


def _too_large(found: str) -> Invalid:
    return Invalid(
        f"This is too much to publish: {found}. Leave out what is generated or downloaded, also from the history.",
        code="publication_too_large",
    )


def _opened(bundle: Path, limit: int) -> int:
    """The bundle's descriptor; a box has written it, so it may be anything."""
    try:
        descriptor = os.open(bundle, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise NotFound("The workspace gave no bundle.", code="publication_refused") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
        os.close(descriptor)
        if stat.S_ISREG(found.st_mode):
            raise _too_large(f"more than {limit} bytes")
        raise Invalid("The workspace gave no bundle.", code="publication_refused")
    return descriptor


def _header(descriptor: int) -> str:
    """Read the bundle's header and stop where its pack begins; the id of its one head."""
    start = os.pread(descriptor, _HEADER_LIMIT, 0)
    end = start.find(b"\n\n")
    lines = start[:end].decode("utf-8", "replace").split("\n") if end > 0 else []
    heads = [line.split(" ", 1) for line in lines[1:] if not line.startswith(("-", "@"))]
    if len(heads) != 1 or heads[0][1:] != ["HEAD"] or _ID.fullmatch(heads[0][0]) is None:
        raise Invalid("The workspace's bundle does not hold one head.", code="publication_refused")
    if any(line.startswith("@filter") for line in lines):
        raise Invalid("The workspace's bundle is not whole.", code="publication_refused")
    os.lseek(descriptor, end + 2, os.SEEK_SET)
    return heads[0][0]
