"""The REST interface of the stand-in Gitea: who asks, with which scope, about which repository, and the answer.

Handlers register themselves with ``route`` (``gitea_rest_*``). A call that no handler knows is refused with 501,
logged and kept in ``Rest.unknown_calls``.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from adapters.simulated.gitea_json import go_json
from adapters.simulated.gitea_pulls import GiteaPulls
from adapters.simulated.gitea_shapes import GiteaShapes
from adapters.simulated.gitea_state import GiteaError, Issue, Repo, Token, User, not_found

log = structlog.get_logger(__name__)

JSON_TYPE = "application/json;charset=utf-8"
NEEDS_ADMIN = "user should be an owner or a collaborator with admin write of a repository"


@dataclass(kw_only=True, slots=True)
class Answer:
    """Status, JSON value or raw text, headers."""

    status: int = 200
    value: Any = None
    text: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Call:
    """One REST request, understood: ``args`` are the parts of the path."""

    state: GiteaPulls
    method: str
    path: str
    query: Mapping[str, str]
    raw_query: str
    args: Mapping[str, str]
    body: dict[str, Any]
    user: User | None
    token: Token | None
    _repo: Repo | None = None

    @property
    def shapes(self) -> GiteaShapes:
        """The shapes of this version."""
        return self.state.shapes

    @property
    def old(self) -> bool:
        """Whether this is the dialect of 1.22."""
        return self.state.shapes.old

    @property
    def doer(self) -> User:
        """Who asks; 401 if nobody does."""
        if self.user is None:
            raise GiteaError(401, "token is required")
        return self.user

    @property
    def repo(self) -> Repo:
        """The repository of the path."""
        if self._repo is None:
            raise not_found()
        return self._repo

    def issue(self) -> Issue:
        """The issue or pull request of the path; 404 also where its unit is switched off or not readable."""
        issue = self.state.issue(self.repo, self.number())
        self.readable(issue)
        return issue

    def readable(self, issue: Issue) -> None:
        """404 unless the caller may read this kind of thing here."""
        unit = "pulls" if issue.pull else "issues"
        if self.state.access(self.repo, self.user, unit) == "none" or (
            not issue.pull and not self.repo.has_issues
        ):
            raise not_found()

    def pull(self) -> Issue:
        """The pull request of the path."""
        issue = self.issue()
        if issue.pull is None:
            raise not_found()
        return issue

    def number(self, name: str = "number") -> int:
        """A number of the path."""
        return int(self.args[name])

    def need_admin(self) -> None:
        """403 unless the caller administers the repository."""
        if not self.state.is_repo_admin(self.repo, self.doer):
            raise GiteaError(403, NEEDS_ADMIN)

    def need_site_admin(self) -> None:
        """403 unless the caller administers the server."""
        if not self.doer.is_admin:
            raise GiteaError(403, "user should be the site admin")

    def need_code(self) -> None:
        """404 unless the caller may read the code (a team may see the issues only)."""
        if self.state.access(self.repo, self.user) == "none":
            raise not_found()

    def need_writer(self, unit: str = "code") -> None:
        """403 unless the caller may write."""
        if not self.state.may_write(self.repo, self.doer, unit):
            raise GiteaError(403, "user should have a permission to write to a repo")

    def need_active(self) -> None:
        """423 where the repository is archived."""
        if self.repo.archived:
            name = self.state.full_name(self.repo)
            raise GiteaError(
                423, f"<Repository {self.repo.id}:{name}> is archived" if self.old else "repo is archived"
            )

    def need(self, **fields: str) -> None:
        """422 unless these fields are there and not empty; the value is Gitea's name of the field."""
        for key, label in fields.items():
            if not self.body.get(key):
                raise GiteaError(422, f"[{label}]: Required")

    def page(self, items: Sequence[Any], show: Callable[[Any], Any], *, always: bool = True) -> Answer:
        """One page of a list with its total. ``always`` False: only where ``page`` is asked for."""
        headers = {"X-Total-Count": str(len(items))}
        if not always and not self.query.get("page"):
            return Answer(value=[show(item) for item in items], headers=headers)
        limit = min(_natural(self.query.get("limit"), 30), 50)
        page = _natural(self.query.get("page"), 1)
        chosen = items[(page - 1) * limit : page * limit]
        return Answer(value=[show(item) for item in chosen], headers=headers)


Handler = Callable[[Call], Answer]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Route:
    method: str
    pattern: re.Pattern[str]
    scope: str
    handler: Handler


_ROUTES: list[_Route] = []


def route(method: str, path: str, *, scope: str = "repository") -> Callable[[Handler], Handler]:
    """Register a handler for ``/api/v1`` + ``path``; ``{name}`` is one part of the path, ``{name*}`` the rest."""
    text = re.sub(r"\{(\w+)\*\}", r"(?P<\1>.+)", path)
    text = re.sub(r"\{(\w+)\}", lambda m: f"(?P<{m[1]}>{_PARTS.get(m[1], '[^/]+')})", text)

    def register(handler: Handler) -> Handler:
        _ROUTES.append(_Route(method=method, pattern=re.compile(text), scope=scope, handler=handler))
        return handler

    return register


_PARTS = {"number": r"\d+", "id": r"\d+", "comment": r"\d+", "review": r"\d+", "branch": r".+"}


class GiteaRest:
    """Answers ``/api/v1`` requests."""

    def __init__(self, state: GiteaPulls) -> None:
        self.state = state
        self.unknown_calls: list[str] = []

    async def answer(self, request: Request) -> Response:
        """Handle one request; every refusal becomes Gitea's answer."""
        raw = await request.body()
        try:
            return self._render(request.method, self._handle(request, raw))
        except GiteaError as error:
            if error.status == 501:
                self.unknown_calls.append(f"{request.method} {request.scope['path'].removeprefix('/api/v1')}")
                log.error("simulated_gitea_unknown_call", call=self.unknown_calls[-1], why=error.message)
            return self._refuse(error)

    def _handle(self, request: Request, raw: bytes) -> Answer:
        path = request.scope["path"].removeprefix("/api/v1")
        user, token = self.authenticate(request.headers.get("authorization", ""))
        for known in _ROUTES:
            match = known.pattern.fullmatch(path)
            if match and known.method == request.method:
                self._check_scope(token, known.scope, request.method)
                call = Call(
                    state=self.state,
                    method=request.method,
                    path=path,
                    query=dict(request.query_params),
                    raw_query=request.url.query,
                    args=match.groupdict(),
                    body={},
                    user=user,
                    token=token,
                )
                moved = self._assign(call)
                if moved is not None:
                    return moved
                call.body = _parse(raw)
                return known.handler(call)
        raise GiteaError(501, f"the stand-in Gitea does not know {request.method} /api/v1{path}")

    def authenticate(self, header: str) -> tuple[User | None, Token | None]:
        """Who a header ``Authorization`` speaks for; raises 401 for a wrong one."""
        kind, _, value = header.partition(" ")
        if not value:
            return None, None
        candidates = [value.strip()]
        if kind.lower() == "basic":
            login, _, secret = _basic(value).partition(":")
            found = self.state.find_user(login)
            if found is not None and found.password is not None and found.password == secret:
                return found, None
            candidates = [secret, login]
        for candidate in candidates:
            token = self.state.tokens.get(candidate)
            if token is not None:
                return self.state.users[token.user_id], token
        if self.state.shapes.old:
            raise GiteaError(401, "user does not exist [uid: 0, name: ]")
        raise GiteaError(401, "invalid username, password or token")

    def _check_scope(self, token: Token | None, category: str, method: str) -> None:
        if token is None or not category:
            return
        level = "read" if method in ("GET", "HEAD") else "write"
        if allows(token, category, level):
            return
        wanted = f"{level}:{category}"
        if self.state.shapes.old:
            raise GiteaError(403, f"token does not have at least one of required scope(s): [{wanted}]")
        has = ",".join(token.scopes)
        raise GiteaError(
            403,
            f"token does not have at least one of required scope(s), required=[{wanted}], token scope={has}",
        )

    def _assign(self, call: Call) -> Answer | None:
        owner, name = call.args.get("owner"), call.args.get("repo")
        if owner is None or name is None:
            return None
        repo = self.state.find_repo(owner, name)
        if repo is None:
            target = self.state.redirected(owner, name)
            if target is None:
                raise not_found()
            rest = call.path.split("/", 4)[4:]
            place = "/".join([f"/api/v1/repos/{self.state.full_name(target)}", *rest])
            return self._moved(call, place + (f"?{call.raw_query}" if call.raw_query else ""))
        if not self.state.may_see(repo, call.user):
            raise not_found()
        call._repo = repo  # noqa: SLF001 - the call is being built here
        return None

    def _moved(self, call: Call, place: str) -> Answer:
        status, word = (307, "Temporary Redirect") if call.old else (301, "Moved Permanently")
        headers = {"Location": place}
        if call.method != "GET":
            return Answer(status=status, text=b"", headers=headers)
        headers["Content-Type"] = "text/html; charset=utf-8"
        return Answer(status=status, text=f'<a href="{place}">{word}</a>.\n\n'.encode(), headers=headers)

    def _render(self, method: str, answer: Answer) -> Response:
        if answer.text is not None:
            return Response(answer.text, answer.status, headers=answer.headers)
        if answer.value is None and (answer.status == 204 or method != "GET"):
            return Response(b"", answer.status, headers=answer.headers)
        text = go_json(answer.value, indent=False) + "\n"
        return Response(text.encode(), answer.status, headers={"Content-Type": JSON_TYPE, **answer.headers})

    def _refuse(self, error: GiteaError) -> Response:
        if error.bare:
            return Response(b"", error.status)
        url = f"{self.state.shapes.base_url}/api/swagger"
        value: dict[str, Any] = {"message": error.message, "url": url}
        if error.generic:
            if self.state.shapes.old:
                errors = [error.message] if error.message else None
                value = {"errors": errors, "message": "The target couldn't be found.", "url": url}
            else:
                value["message"] = error.message or "not found"
        body = (go_json(value, indent=False) + "\n").encode()
        return Response(body, error.status, headers={"Content-Type": JSON_TYPE})


def allows(token: Token, category: str, level: str) -> bool:
    """Whether a token's scopes cover reading or writing a category."""
    enough = {"all", f"write:{category}"} | ({f"read:{category}"} if level == "read" else set())
    return bool(enough & set(token.scopes))


def _basic(value: str) -> str:
    try:
        return base64.b64decode(value).decode(errors="replace")
    except ValueError:
        return ""


def _natural(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() and int(text) > 0 else default


def _parse(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise GiteaError(422, f"invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise GiteaError(422, "a JSON object is expected")
    return value
