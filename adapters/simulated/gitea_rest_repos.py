"""REST: the server, users, repositories, collaborators and hooks."""

from typing import Any

from adapters.simulated.gitea_hooks import stored_events
from adapters.simulated.gitea_rest import Answer, Call, route
from adapters.simulated.gitea_state import GiteaError, Hook, Repo, User, not_found, rank

_REPO = "/repos/{owner}/{repo}"
_PERMISSION_REFUSED = (
    "Only admins can query all permissions, repo admins can query all repo permissions, "
    "collaborators can query only their own"
)


# Server and users


@route("GET", "/version", scope="")
def version(call: Call) -> Answer:
    """The version that this stand-in speaks."""
    return Answer(value={"version": call.shapes.version})


@route("GET", "/user", scope="user")
def who_am_i(call: Call) -> Answer:
    """The owner of the token."""
    return Answer(value=call.shapes.user(call.doer, call.doer))


@route("GET", "/users/search", scope="user")
def search_users(call: Call) -> Answer:
    """Users whose name contains the text."""
    text = (call.query.get("q") or "").lower()
    found = [u for u in call.state.users.values() if not u.is_org and text in u.login.lower()]
    page = call.page(found, lambda user: call.shapes.user(user, call.user))
    return Answer(value={"data": page.value, "ok": True}, headers=page.headers)


@route("GET", "/users/{login}", scope="user")
def get_user(call: Call) -> Answer:
    """One user."""
    found = call.state.find_user(call.args["login"])
    if found is None:
        raise not_found(f"user redirect does not exist [name: {call.args['login']}]")
    return Answer(value=call.shapes.user(found, call.user))


@route("GET", "/user/repos", scope="repository")
def my_repos(call: Call) -> Answer:
    """Repositories of the token's owner, and those that were shared with it."""
    doer = call.doer
    found = [
        repo
        for repo in call.state.repos.values()
        if repo.owner_id == doer.id or doer.id in repo.collaborators or _in_team(call, repo, doer)
    ]
    return call.page(found, lambda repo: call.shapes.repo(repo, doer))


def _in_team(call: Call, repo: Repo, user: User) -> bool:
    return any(
        t.org_id == repo.owner_id and user.id in t.members and (t.repos is None or repo.id in t.repos)
        for t in call.state.teams.values()
    )


@route("POST", "/admin/users", scope="admin")
def create_user(call: Call) -> Answer:
    """Create a user."""
    call.need_site_admin()
    call.need(username="Username", email="Email")
    body = call.body
    user = call.state.add_user(body["username"], email=body["email"], password=body.get("password"))
    return Answer(status=201, value=call.shapes.user(user, call.doer))


@route("POST", "/admin/users/{login}/rename", scope="admin")
def rename_user(call: Call) -> Answer:
    """Rename a user."""
    call.need_site_admin()
    user = call.state.user(call.args["login"])
    name = str(call.body.get("new_username") or call.body.get("new_name") or "")
    if call.state.find_user(name) is not None:
        raise GiteaError(422, f"user already exists [name: {name}]")
    user.login = name
    return Answer(status=204)


@route("POST", "/orgs", scope="organization")
def create_org(call: Call) -> Answer:
    """Create an organisation that the caller owns."""
    call.need(username="UserName")
    org = call.state.add_org(call.body["username"], owner=call.doer.login)
    return Answer(
        status=201, value={"id": org.id, "name": org.login, "username": org.login, "visibility": "public"}
    )


# Repositories


@route("POST", "/user/repos", scope="user")
def create_own_repo(call: Call) -> Answer:
    """Create a repository of one's own."""
    return _create_repo(call, call.doer.login)


@route("POST", "/orgs/{login}/repos", scope="organization")
def create_org_repo(call: Call) -> Answer:
    """Create a repository of an organisation."""
    org = call.state.user(call.args["login"])
    owners = [t for t in call.state.teams.values() if t.org_id == org.id and t.mode == "owner"]
    if not call.doer.is_admin and not any(call.doer.id in team.members for team in owners):
        raise GiteaError(403, "Given user is not allowed to create repository in organization.")
    return _create_repo(call, org.login)


def _create_repo(call: Call, owner: str) -> Answer:
    call.need(name="Name")
    body = call.body
    repo = call.state.add_repo(
        owner,
        body["name"],
        private=bool(body.get("private")),
        description=body.get("description") or "",
        default_branch=body.get("default_branch") or "main",
        files={"README.md": f"# {body['name']}\n"} if body.get("auto_init") else {},
    )
    return Answer(status=201, value=call.shapes.repo(repo, call.doer))


@route("GET", "/repos/search", scope="repository")
def search_repos(call: Call) -> Answer:
    """Visible repositories whose name contains the text."""
    text = (call.query.get("q") or "").lower()
    found = [
        r for r in call.state.repos.values() if text in r.name.lower() and call.state.may_see(r, call.user)
    ]
    page = call.page(found, lambda repo: call.shapes.repo(repo, call.user))
    return Answer(value={"ok": True, "data": page.value}, headers=page.headers)


@route("GET", "/repositories/{id}")
def get_repo_by_id(call: Call) -> Answer:
    """A repository by its id."""
    repo = call.state.repos.get(call.number("id"))
    if repo is None or not call.state.may_see(repo, call.user):
        raise not_found()
    return Answer(value=call.shapes.repo(repo, call.user))


@route("GET", _REPO)
def get_repo(call: Call) -> Answer:
    """A repository."""
    return Answer(value=call.shapes.repo(call.repo, call.user))


@route("PATCH", _REPO)
def edit_repo(call: Call) -> Answer:
    """Rename a repository or change what is known of it; other fields are refused loudly."""
    call.need_admin()
    repo, body = call.repo, call.body
    known = {"name", "private", "archived", "has_issues", "description", "default_branch"}
    if unknown := set(body) - known:
        raise GiteaError(501, f"the stand-in Gitea does not know how to set {sorted(unknown)}")
    if body.get("name"):
        call.state.rename_repo(repo, body["name"])
    for key in known - {"name"}:
        if body.get(key) is not None:
            setattr(repo, key, body[key])
    return Answer(value=call.shapes.repo(repo, call.doer))


@route("DELETE", _REPO)
def delete_repo(call: Call) -> Answer:
    """Delete a repository."""
    if rank(call.state.general_access(call.repo, call.doer)) < rank("owner"):
        raise GiteaError(403, "user should be an owner of the repository")
    call.state.delete_repo(call.repo)
    return Answer(status=204)


# Collaborators


@route("GET", _REPO + "/collaborators")
def list_collaborators(call: Call) -> Answer:
    """Those with a direct right."""
    found = [call.state.users[user] for user in call.repo.collaborators]
    return call.page(found, lambda user: call.shapes.user(user, call.doer))


@route("GET", _REPO + "/collaborators/{login}")
def is_collaborator(call: Call) -> Answer:
    """204 for a direct collaborator, else 404."""
    if call.state.user(call.args["login"]).id in call.repo.collaborators:
        return Answer(status=204)
    raise not_found()


@route("PUT", _REPO + "/collaborators/{login}")
def add_collaborator(call: Call) -> Answer:
    """Give a direct right."""
    call.need_admin()
    mode = call.body.get("permission") or "write"
    call.state.collaborator(call.state.full_name(call.repo), call.args["login"], mode)
    return Answer(status=204)


@route("DELETE", _REPO + "/collaborators/{login}")
def remove_collaborator(call: Call) -> Answer:
    """Take a direct right away."""
    call.need_admin()
    call.state.collaborator(call.state.full_name(call.repo), call.args["login"], "none")
    return Answer(status=204)


@route("GET", _REPO + "/collaborators/{login}/permission")
def get_permission(call: Call) -> Answer:
    """A user's right: for administrators, from 1.27 also one's own; 1.27 does not see rights by team units."""
    doer, login = call.doer, call.args["login"]
    own = not call.old and doer.login.lower() == login.lower()
    if not own and not call.state.is_repo_admin(call.repo, doer):
        raise GiteaError(403, _PERMISSION_REFUSED)
    user = call.state.user(login)
    mode = call.state.access(call.repo, user) if call.old else call.state.general_access(call.repo, user)
    owner = call.state.users[call.repo.owner_id]
    return Answer(value={"permission": mode, "role_name": mode, "user": call.shapes.user(user, owner)})


@route("GET", _REPO + "/assignees")
def list_assignees(call: Call) -> Answer:
    """Who can be assigned: direct writers, and members of teams even if they only read (so no word on rights)."""
    writers = {user for user, mode in call.repo.collaborators.items() if rank(mode) >= rank("write")}
    users = [
        user
        for user in sorted(call.state.users.values(), key=lambda u: u.login)
        if not user.is_org
        and (user.id == call.repo.owner_id or user.id in writers or _in_team(call, call.repo, user))
    ]
    return Answer(value=[call.shapes.user(user, call.doer) for user in users])


# Hooks


@route("GET", _REPO + "/hooks")
def list_hooks(call: Call) -> Answer:
    """Hooks of a repository, without their secrets."""
    call.need_admin()
    return call.page([h for h in call.state.hooks.values() if h.repo_id == call.repo.id], call.shapes.hook)


@route("POST", _REPO + "/hooks")
def create_hook(call: Call) -> Answer:
    """Create a hook of a repository."""
    call.need_admin()
    return _create_hook(call, repo=call.repo)


@route("GET", _REPO + "/hooks/{id}")
def get_hook(call: Call) -> Answer:
    """One hook."""
    call.need_admin()
    return Answer(value=call.shapes.hook(_hook(call)))


@route("PATCH", _REPO + "/hooks/{id}")
def edit_hook(call: Call) -> Answer:
    """Change a hook."""
    call.need_admin()
    hook, body = _hook(call), call.body
    config: dict[str, Any] = body.get("config") or {}
    hook.url = config.get("url") or hook.url
    hook.content_type = config.get("content_type") or hook.content_type
    hook.secret = config.get("secret") or hook.secret
    if body.get("events") is not None:
        hook.events = stored_events(body["events"])
    if body.get("active") is not None:
        hook.active = bool(body["active"])
    hook.updated = call.state.clock()
    return Answer(value=call.shapes.hook(hook))


@route("DELETE", _REPO + "/hooks/{id}")
def delete_hook(call: Call) -> Answer:
    """Remove a hook."""
    call.need_admin()
    del call.state.hooks[_hook(call).id]
    return Answer(status=204)


@route("POST", _REPO + "/hooks/{id}/tests")
def test_hook(call: Call) -> Answer:
    """The test button: 204 even where the hook gets nothing."""
    call.need_admin()
    call.state.test_hook(call.doer, call.repo, _hook(call))
    return Answer(status=204)


@route("POST", "/orgs/{login}/hooks", scope="organization")
def create_org_hook(call: Call) -> Answer:
    """Create a hook of an organisation."""
    org = _owned_org(call)
    return _create_hook(call, owner=org.login)


@route("GET", "/orgs/{login}/hooks", scope="organization")
def list_org_hooks(call: Call) -> Answer:
    """Hooks of an organisation."""
    org = _owned_org(call)
    return call.page([h for h in call.state.hooks.values() if h.owner_id == org.id], call.shapes.hook)


@route("POST", "/admin/hooks", scope="admin")
def create_system_hook(call: Call) -> Answer:
    """Create a hook of the whole server."""
    call.need_site_admin()
    return _create_hook(call)


def _owned_org(call: Call) -> User:
    org = call.state.user(call.args["login"])
    owners = [t for t in call.state.teams.values() if t.org_id == org.id and t.mode == "owner"]
    if not call.doer.is_admin and not any(call.doer.id in team.members for team in owners):
        raise GiteaError(403, "Must be an organization owner")
    return org


def _hook(call: Call) -> Hook:
    hook = call.state.hooks.get(call.number("id"))
    if hook is None or hook.repo_id != call.repo.id:
        raise not_found()
    return hook


def _create_hook(call: Call, *, repo: Repo | None = None, owner: str | None = None) -> Answer:
    config: dict[str, Any] = call.body.get("config") or {}
    if call.body.get("type") != "gitea":
        raise GiteaError(422, f"Invalid hook type: {call.body.get('type')}")
    if not config.get("url"):
        raise GiteaError(422, "Missing config option: url")
    if config.get("content_type") not in ("json", "form"):
        raise GiteaError(422, "Invalid content type")
    hook = call.state.add_hook(
        config["url"],
        secret=config.get("secret") or "",
        events=call.body.get("events") or ["push"],
        repo=repo,
        owner=owner,
        content_type=config["content_type"],
        active=bool(call.body.get("active")),
    )
    return Answer(status=201, value=call.shapes.hook(hook))
