"""What the stand-in Gitea knows: users, tokens, teams, repositories, issues, comments, reviews, hooks.

Everything lives in memory; only git lies on disk (``gitea_git``). The entities are mutable on purpose: they are
the stand-in's own database, and every answer is computed from them. Times have whole seconds and are UTC, as
Gitea's are.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

MODES = ("none", "read", "write", "admin", "owner")


def rank(mode: str) -> int:
    """Position of an access mode: none 0, read 1, write 2, admin 3, owner 4."""
    return MODES.index(mode)


def utc_now() -> datetime:
    """Now, UTC, whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


class GiteaError(Exception):
    """An answer that refuses: ``status`` and ``message``; ``not_found`` ones are worded by the dialect."""

    def __init__(self, status: int, message: str = "", *, generic: bool = False, bare: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.generic = generic
        self.bare = bare


def not_found(detail: str = "") -> GiteaError:
    """Gitea's 404, which each version words in its own way."""
    return GiteaError(404, detail, generic=True)


def forbidden(message: str = "") -> GiteaError:
    """A 403; without a message its body is empty, as Gitea's is where a handler sets only the status."""
    return GiteaError(403, message, bare=not message)


@dataclass(kw_only=True, slots=True)
class User:
    """A user, or an organisation."""

    id: int
    login: str
    email: str
    created: datetime
    full_name: str = ""
    is_admin: bool = False
    is_org: bool = False
    password: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """An access token: its plain text, its owner's id and its scopes (``all`` or ``read:issue`` and the like)."""

    value: str = field(repr=False)
    user_id: int
    scopes: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class Team:
    """A team of an organisation. ``mode`` is ``owner``, ``admin`` or ``none``; with ``none`` the units decide."""

    id: int
    org_id: int
    name: str
    mode: str
    units: dict[str, str]
    members: set[int] = field(default_factory=set)
    repos: set[int] | None = None


@dataclass(kw_only=True, slots=True)
class Repo:
    """A repository. ``protected``: branches that nobody may push to; ``has_extras``: wiki, projects, releases."""

    id: int
    owner_id: int
    name: str
    created: datetime
    updated: datetime
    private: bool = False
    archived: bool = False
    has_issues: bool = True
    has_extras: bool = True
    description: str = ""
    default_branch: str = "main"
    fork_of: int | None = None
    collaborators: dict[int, str] = field(default_factory=dict)
    protected: dict[str, datetime] = field(default_factory=dict)
    next_number: int = 1
    topics: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Pull:
    """What makes an issue a pull request. ``head_repo_id`` is None once the fork is gone."""

    id: int
    head_repo_id: int | None
    head_branch: str
    base_branch: str
    merge_base: str
    head_sha: str
    merged_at: datetime | None = None
    merged_by: int | None = None
    merge_commit: str | None = None


@dataclass(kw_only=True, slots=True)
class Issue:
    """An issue or a pull request."""

    id: int
    repo_id: int
    number: int
    poster_id: int
    title: str
    body: str
    created: datetime
    updated: datetime
    state: str = "open"
    locked: bool = False
    closed: datetime | None = None
    num_comments: int = 0
    content_version: int = 0
    pull: Pull | None = None
    reactions: list[tuple[int, str, datetime]] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Comment:
    """One entry of a timeline; ``kind`` is ``comment`` for what people write below an issue.

    Other kinds: ``review``, ``code`` (inline), ``close``, ``reopen``, ``lock``, ``unlock``, ``pull_push``,
    ``merge_pull``, ``change_title``, ``delete_branch``.
    """

    id: int
    issue_id: int
    poster_id: int
    kind: str
    body: str
    created: datetime
    updated: datetime
    review_id: int = 0
    path: str = ""
    line: int = 0
    commit_id: str = ""
    diff_hunk: str = ""
    reactions: list[tuple[int, str, datetime]] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Review:
    """A review; ``state`` is PENDING, COMMENT, APPROVED or REQUEST_CHANGES."""

    id: int
    issue_id: int
    reviewer_id: int
    state: str
    body: str
    commit_id: str
    submitted: datetime
    updated: datetime
    comment_id: int = 0
    official: bool = False
    dismissed: bool = False


@dataclass(kw_only=True, slots=True)
class Hook:
    """A webhook of a repository, of an owner, or (neither given) of the whole server."""

    id: int
    url: str
    content_type: str
    secret: str = field(repr=False)
    events: frozenset[str]
    active: bool
    created: datetime
    updated: datetime
    repo_id: int | None = None
    owner_id: int | None = None
    branch_filter: str = ""


class GiteaState:
    """The stand-in's database with its lookups and its rules of access."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.clock = clock
        self.users: dict[int, User] = {}
        self.tokens: dict[str, Token] = {}
        self.teams: dict[int, Team] = {}
        self.repos: dict[int, Repo] = {}
        self.redirects: dict[tuple[int, str], int] = {}
        self.issues: dict[int, Issue] = {}
        self.comments: dict[int, Comment] = {}
        self.reviews: dict[int, Review] = {}
        self.hooks: dict[int, Hook] = {}
        self._ids: dict[str, Iterator[int]] = {}

    def next_id(self, noun: str) -> int:
        """The next number of a noun's own sequence, from 1."""
        return next(self._ids.setdefault(noun, count(1)))

    # Users, tokens, teams

    def add_user(
        self, login: str, *, admin: bool = False, email: str | None = None, password: str | None = None
    ) -> User:
        """Create a user; raises ``GiteaError`` 422 if the name is taken."""
        return self._add_account(
            login, email=email or f"{login}@example.test", is_admin=admin, is_org=False, password=password
        )

    def add_org(self, login: str, *, owner: str | None = None) -> User:
        """Create an organisation with its team Owners; ``owner`` becomes that team's first member."""
        org = self._add_account(login, email="", is_admin=False, is_org=True, password=None)
        self.add_team(login, "Owners", mode="owner", members=[owner] if owner else [])
        return org

    def _add_account(
        self, login: str, *, email: str, is_admin: bool, is_org: bool, password: str | None
    ) -> User:
        if self.find_user(login) is not None:
            raise GiteaError(422, f"user already exists [name: {login}]")
        user = User(
            id=self.next_id("user"),
            login=login,
            email=email,
            created=self.clock(),
            is_admin=is_admin,
            is_org=is_org,
            password=password,
        )
        self.users[user.id] = user
        return user

    def add_token(self, login: str, scopes: Iterable[str] = ("all",), *, value: str | None = None) -> str:
        """Create an access token and return its plain text (40 random hex digits unless ``value`` is given)."""
        text = value or secrets.token_hex(20)
        self.tokens[text] = Token(value=text, user_id=self.user(login).id, scopes=tuple(scopes))
        return text

    def add_team(
        self,
        org: str,
        name: str,
        *,
        mode: str = "none",
        units: dict[str, str] | None = None,
        members: Iterable[str] = (),
        repos: Iterable[str] | None = None,
    ) -> Team:
        """Create a team. ``units`` maps ``code``, ``issues`` and ``pulls`` to modes; ``repos`` None means all."""
        team = Team(
            id=self.next_id("team"),
            org_id=self.user(org).id,
            name=name,
            mode=mode,
            units=dict(units or {}),
            members={self.user(login).id for login in members},
            repos=None if repos is None else {self.repo(repo).id for repo in repos},
        )
        self.teams[team.id] = team
        return team

    def find_user(self, login: str) -> User | None:
        """The account of that name, in any case of letters."""
        wanted = login.lower()
        return next((user for user in self.users.values() if user.login.lower() == wanted), None)

    def user(self, login: str) -> User:
        """The account of that name, else ``GiteaError`` 404."""
        found = self.find_user(login)
        if found is None:
            raise GiteaError(404, f"user does not exist [uid: 0, name: {login}]")
        return found

    # Repositories and what is in them

    def find_repo(self, owner: str, name: str) -> Repo | None:
        """The repository of that present name, in any case of letters."""
        account = self.find_user(owner)
        if account is None:
            return None
        wanted = name.lower()
        return next(
            (r for r in self.repos.values() if r.owner_id == account.id and r.name.lower() == wanted), None
        )

    def redirected(self, owner: str, name: str) -> Repo | None:
        """The repository that had that name before it was renamed."""
        account = self.find_user(owner)
        target = self.redirects.get((account.id, name.lower())) if account else None
        return self.repos.get(target) if target is not None else None

    def repo(self, full_name: str) -> Repo:
        """The repository ``owner/name``, else ``GiteaError`` 404."""
        owner, _, name = full_name.partition("/")
        found = self.find_repo(owner, name)
        if found is None:
            raise not_found()
        return found

    def full_name(self, repo: Repo) -> str:
        """``owner/name`` as it is now."""
        return f"{self.users[repo.owner_id].login}/{repo.name}"

    def issues_of(self, repo: Repo) -> list[Issue]:
        """Issues and pull requests of a repository by number."""
        return sorted((i for i in self.issues.values() if i.repo_id == repo.id), key=lambda i: i.number)

    def find_issue(self, repo: Repo, number: int) -> Issue | None:
        """The issue or pull request of that number."""
        return next((i for i in self.issues.values() if i.repo_id == repo.id and i.number == number), None)

    def issue(self, repo: Repo, number: int) -> Issue:
        """The same, else ``GiteaError`` 404."""
        found = self.find_issue(repo, number)
        if found is None:
            raise not_found()
        return found

    def comments_of(self, issue: Issue, kinds: Iterable[str] = ("comment",)) -> list[Comment]:
        """Timeline entries of an issue, ascending."""
        wanted = set(kinds)
        return [c for c in self.comments.values() if c.issue_id == issue.id and c.kind in wanted]

    def reviews_of(self, issue: Issue) -> list[Review]:
        """Reviews of a pull request, ascending."""
        return [r for r in self.reviews.values() if r.issue_id == issue.id]

    # Access

    def access(self, repo: Repo, user: User | None, unit: str = "code") -> str:
        """A user's right on one unit (``code``, ``issues``, ``pulls``) of a repository; None is anonymous."""
        best = max(rank(self.general_access(repo, user)), rank(self._team_access(repo, user, unit)))
        return MODES[best]

    def general_access(self, repo: Repo, user: User | None) -> str:
        """The right that does not come from a team's units."""
        if user is None:
            return "none" if repo.private else "read"
        if user.is_admin or user.id == repo.owner_id:
            return "owner"
        modes = ["none" if repo.private else "read", repo.collaborators.get(user.id, "none")]
        modes += [team.mode for team in self._teams(repo, user)]
        return MODES[max(map(rank, modes))]

    def _team_access(self, repo: Repo, user: User | None, unit: str) -> str:
        modes = [team.units.get(unit, "none") for team in self._teams(repo, user)] if user else []
        return MODES[max(map(rank, modes), default=0)]

    def _teams(self, repo: Repo, user: User) -> list[Team]:
        return [
            team
            for team in self.teams.values()
            if team.org_id == repo.owner_id
            and user.id in team.members
            and (team.repos is None or repo.id in team.repos)
        ]

    def may_see(self, repo: Repo, user: User | None) -> bool:
        """Whether any unit of the repository is readable."""
        return any(rank(self.access(repo, user, unit)) > 0 for unit in ("code", "issues", "pulls"))

    def may_write(self, repo: Repo, user: User | None, unit: str = "code") -> bool:
        """Whether the unit is writable."""
        return rank(self.access(repo, user, unit)) >= rank("write")

    def is_repo_admin(self, repo: Repo, user: User | None) -> bool:
        """Whether the user administers the repository."""
        return rank(self.general_access(repo, user)) >= rank("admin")

    def collaborator(self, repo: str, login: str, mode: str) -> None:
        """Give a user a direct right (``read``, ``write``, ``admin``); ``none`` takes it away."""
        target, user = self.repo(repo), self.user(login)
        if mode == "none":
            target.collaborators.pop(user.id, None)
        else:
            target.collaborators[user.id] = mode
