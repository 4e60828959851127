"""Keys and stream names: pure functions, the only place that spells them (seed 000 §3; architecture, Keys).

Keys are lower case where Gitea does not tell cases apart (owner, name). A repository's key is fixed at registration
for its id: a rename keeps it, a newcomer on an occupied name gets ``~<id>``.
"""

import hashlib
import re
from typing import Literal

from domain.faults import Invalid
from domain.webhooks import PartKind, ResourceKind

INSTANCE = "default"
TASK_PREFIX = "gitea-task-"
TASK_HEX = 24
CONTROL_STREAM = f"control:{INSTANCE}"

_NAME = re.compile(
    r"[A-Za-z0-9._-]{1,100}"
)  # Gitea: AlphaDashDot, 100 characters for a repository, 40 for an owner
_REFUSED = frozenset({".", ".."})
_DELIVERY_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_REPO_KEY = re.compile(r"default:[a-z0-9._-]{1,100}/[a-z0-9._-]{1,100}(?:~[1-9][0-9]*)?")
_KINDS = frozenset({"issue", "pull_request"})

DeferredKind = Literal["comment", "review", "issue", "pull_request", "retry"]


def check_name(owner: str, name: str) -> None:
    """Owner and name as Gitea allows them, and safe as folders; else ``Invalid`` ``invalid_repository_name``."""
    for part in (owner, name):
        if not _NAME.fullmatch(part) or part in _REFUSED:
            raise Invalid(
                "the repository's owner or name is not one that Gitea allows", code="invalid_repository_name"
            )
    if name.lower().endswith((".git", ".wiki")):
        raise Invalid(
            "the repository's owner or name is not one that Gitea allows", code="invalid_repository_name"
        )


def repo_key(owner: str, name: str, *, repository_id: int | None = None) -> str:
    """``default:<owner>/<name>`` in lower case; with ``repository_id`` the form for an occupied name, ``…~<id>``."""
    check_name(owner, name)
    key = f"{INSTANCE}:{owner.lower()}/{name.lower()}"
    return key if repository_id is None else f"{key}~{_positive(repository_id)}"


def workspace_parts(repo: str) -> tuple[str, str, str]:
    """``(instance, owner, name)`` of a repository key: the folders of its workspace under their root."""
    if not _REPO_KEY.fullmatch(repo):
        raise Invalid("this is no repository key", code="invalid_repo_key")
    instance, _, path = repo.partition(":")
    owner, _, name = path.partition("/")
    if owner in _REFUSED or name in _REFUSED:
        raise Invalid("this is no repository key", code="invalid_repo_key")
    return instance, owner, name


def resource_key(repo: str, kind: ResourceKind, number: int) -> str:
    """``<repoKey>:<issue|pull_request>:<number>``."""
    if kind not in _KINDS:
        raise Invalid("a resource is an issue or a pull_request", code="invalid_resource")
    return f"{repo}:{kind}:{_positive(number)}"


def session_key(repo: str, kind: ResourceKind, number: int) -> str:
    """The same as the resource's key: one thread per issue or pull request."""
    return resource_key(repo, kind, number)


def delivery_key(delivery_id: str) -> str:
    """``default:<uuid>``; other characters than letters, digits, ``.``, ``_``, ``-`` are ``Invalid``."""
    if not _DELIVERY_ID.fullmatch(delivery_id):
        raise Invalid(
            "the delivery id is empty, too long or holds odd characters", code="delivery_id_invalid"
        )
    return f"{INSTANCE}:{delivery_id}"


def deferred_key(kind: DeferredKind, ident: int | str) -> str:
    """``default:comment:<id>``, ``default:review:<id>`` for deferred mentions, ``default:retry:<request>``."""
    return f"{INSTANCE}:{kind}:{ident}"


def task_id(key: str) -> str:
    """``gitea-task-`` and the first 24 hex digits of the delivery key's SHA-256."""
    return TASK_PREFIX + hashlib.sha256(key.encode()).hexdigest()[:TASK_HEX]


def intent_id(stream: str, version: int, kind: str, ordinal: int = 0) -> str:
    """Hash of what caused an intent: the event ``stream@version``, the intent's kind, its number among equals."""
    text = "\n".join((stream, str(version), kind, str(ordinal)))
    return "intent-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def delivery_stream(key: str) -> str:
    """Stream of a delivery, by its delivery key."""
    return f"delivery:{key}"


def repo_stream(repo: str) -> str:
    """Stream of a repository, by its key."""
    return f"repo:{repo}"


def repository_id_stream(repository_id: int) -> str:
    """Stream that ties Gitea's repository id to its key, for ever."""
    return f"repository-id:{INSTANCE}:{_positive(repository_id)}"


def session_stream(session: str) -> str:
    """Stream of a session, by its key."""
    return f"session:{session}"


def task_stream(task: str) -> str:
    """Stream of a task."""
    return f"task:{task}"


def turn_stream(turn: str) -> str:
    """Stream of a turn, by our own turn id."""
    return f"turn:{turn}"


def mention_stream(repository_id: int, kind: PartKind, ident: int, created_at: str) -> str:
    """The unique key of a mention: consumed by admission only. ``created_at`` is the normalised UTC text."""
    return f"mention:{_positive(repository_id)}:{kind}:{_positive(ident)}:{created_at}"


def request_stream(request: str) -> str:
    """The unique key of an operator's request."""
    return f"request:{request}"


def lease_scope(repo: str) -> str:
    """Scope of a repository's lease."""
    return f"repo:{repo}"


def lease_stream(scope: str) -> str:
    """Stream of a lease, by its scope."""
    return f"lease:{scope}"


def _positive(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise Invalid("an id or number must be a whole number from 1", code="invalid_id")
    return number
