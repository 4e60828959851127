"""Names that become paths or refs: what is let through, and where it leads. Everything else is refused."""

import re
from dataclasses import dataclass
from pathlib import Path

from domain.faults import Conflict, Invalid

_KEY = re.compile(r"default:([a-z0-9._-]{1,100})/([a-z0-9._-]{1,100}(?:~[0-9]{1,20})?)")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SESSION = re.compile(r"(default:[^:]+):(issue|pull_request):([1-9][0-9]{0,18})")
_TASK = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_REF = re.compile(r"refs/(?:heads|tags|pull|remotes|turnkeeper)/[^\x00-\x20\x7f~^:?*\[\\]{1,240}")


@dataclass(frozen=True, kw_only=True)
class SessionName:
    """The parts of a ``sessionKey``; ``label`` is safe in refs: ``issue-42``, ``pull-request-7``."""

    repo_key: str
    kind: str
    number: int

    @property
    def label(self) -> str:
        """How refs call it."""
        return f"{self.kind.replace('_', '-')}-{self.number}"

    @property
    def branch(self) -> str:
        """The local branch that belongs to this session alone."""
        return f"refs/heads/turnkeeper/{self.label}"


def repo_path(root: Path, repo_key: str, *, suffix: str = "") -> Path:
    """``<root>/default/<owner>/<repo><suffix>`` of a ``repoKey``; raises ``Invalid`` (``invalid_name``)."""
    found = _KEY.fullmatch(repo_key)
    if found is None or any(part.split("~")[0] in {".", ".."} for part in found.groups()):
        raise Invalid("This is not the key of a repository.", code="invalid_name")
    return root / "default" / found[1] / (found[2] + suffix)


def gitea_name(name: str) -> str:
    """An owner's or repository's name as Gitea allows it; raises ``Invalid`` (``invalid_name``)."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise Invalid("This is not a name of an owner or a repository.", code="invalid_name")
    return name


def session_name(session_key: str) -> SessionName:
    """The parts of a ``sessionKey``; raises ``Invalid`` (``invalid_name``)."""
    found = _SESSION.fullmatch(session_key)
    if found is None or _KEY.fullmatch(found[1]) is None:
        raise Invalid("This is not the key of a session.", code="invalid_name")
    return SessionName(repo_key=found[1], kind=found[2], number=int(found[3]))


def parked_ref(task_id: str) -> str:
    """Where the leftovers of a task are parked; raises ``Invalid`` (``invalid_name``)."""
    if _TASK.fullmatch(task_id) is None:
        raise Invalid("This is not a task's id.", code="invalid_name")
    return f"refs/turnkeeper/parked/{task_id}"


def checked_ref(ref: str) -> str:
    """A full ref name that git can't take for an option or a range; raises ``Invalid`` (``invalid_name``)."""
    parts = ref.split("/")
    bad = any(part.startswith(".") or part.endswith(".lock") or not part for part in parts)
    if _REF.fullmatch(ref) is None or bad or ".." in ref or "@{" in ref or ref.endswith("."):
        raise Invalid("This is not the full name of a ref.", code="invalid_name")
    return ref


def real_folder(root: Path, path: Path) -> Path:
    """``path``, made if it is missing; raises ``Conflict`` (``unsafe_path``) for a symbolic link below ``root``."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    step = root
    for part in path.relative_to(root).parts:
        step = step / part
        if step.is_symlink() or (step.exists() and not step.is_dir()):
            raise Conflict(
                "A symbolic link or a file stands where a repository's folder belongs.", code="unsafe_path"
            )
        step.mkdir(exist_ok=True, mode=0o700)
    return path
