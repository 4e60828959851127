"""git on a work tree: only ever inside a box without credentials.

A hostile ``core.fsmonitor``, hook, filter or ``core.worktree`` of a workspace acts on a mere ``git status``. In the
box it finds the workspace, a read-only mirror, and nothing else; what can be overridden is overridden as well.
"""

from collections.abc import Mapping
from pathlib import Path

from adapters.box_locks import WorkspaceLock
from adapters.box_spec import WORKSPACE, Bind, BoxFile, BoxSpec, Completed
from adapters.boxes import Boxes
from domain.faults import Fault

MIRROR = "/mirror"
GITCONFIG = "/run/turnkeeper/gitconfig"
GITCONFIG_TEXT = b"[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n"
_OVERRIDES = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.fileMode": "true",
    "core.safecrlf": "false",
    "core.sparseCheckout": "false",
    "commit.gpgSign": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "protocol.allow": "never",
    "protocol.file.allow": "always",  # the mirror, which is bound in read-only
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "checkout.guess": "false",
}
_WHO = {"NAME": "Turnkeeper", "EMAIL": "turnkeeper@localhost"}


class BoxedGit:
    """git and small shell scripts on one workspace, each in a box of its own that keeps the workspace's lock."""

    def __init__(
        self, boxes: Boxes, workspace: Path, mirror: Path, lock: WorkspaceLock, *, deadline: float
    ) -> None:
        self._boxes = boxes
        self._workspace = workspace
        self._mirror = mirror
        self._lock = lock
        self._deadline = deadline

    async def script(self, text: str, *arguments: str, env: Mapping[str, str] | None = None) -> Completed:
        """Run a shell script (``set -eu`` first) whose ``git`` acts on the workspace; any return code."""
        spec = BoxSpec(
            argv=("/bin/sh", "-c", "set -eu\n" + text, "turnkeeper", *arguments),
            workspace=self._workspace,
            binds=(Bind(source=self._mirror, target=MIRROR),),
            files=(BoxFile(target=GITCONFIG, content=GITCONFIG_TEXT, mode=0o644),),
            env=git_environment() | dict(env or {}),
            lock=self._lock,
        )
        return await self._boxes.run(spec, self._deadline)

    async def git(self, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
        """One git command's output, stripped; ``Fault`` (``workspace_git_failed``) for other return codes."""
        done = await self.script('exec git "$@"', *arguments)
        if done.rc not in ok:
            raise GitRefused(arguments[0], done)
        return done.text.strip()


class GitRefused(Fault):
    """git in a workspace said no; ``said`` is the end of its words (untrusted, for people)."""

    code = "workspace_git_failed"

    def __init__(self, operation: str, done: Completed) -> None:
        self.said = done.err.decode("utf-8", errors="replace").strip()[-2000:]
        super().__init__(
            f"git {operation} failed in the workspace.", params={"operation": operation, "rc": done.rc}
        )


def git_environment() -> dict[str, str]:
    """What git in a box needs to act on the workspace and to leave out what a configuration could run."""
    made = {
        "GIT_DIR": f"{WORKSPACE}/.git",
        "GIT_WORK_TREE": WORKSPACE,
        "GIT_CONFIG_GLOBAL": GITCONFIG,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_EDITOR": "false",
        "GIT_PAGER": "cat",
        "GIT_LITERAL_PATHSPECS": "1",
        "LC_ALL": "C",
        "MIRROR": MIRROR,
    }
    for role in ("AUTHOR", "COMMITTER"):
        for part, value in _WHO.items():
            made[f"GIT_{role}_{part}"] = value
    made["GIT_CONFIG_COUNT"] = str(len(_OVERRIDES))
    for number, (key, value) in enumerate(_OVERRIDES.items()):
        made[f"GIT_CONFIG_KEY_{number}"] = key
        made[f"GIT_CONFIG_VALUE_{number}"] = value
    return made
