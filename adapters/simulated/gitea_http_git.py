"""Git over HTTP for the stand-in Gitea: git's own ``http-backend``, with Gitea's rules of access before it.

Reading a public repository asks for nothing, so a wrong token reads it too; everything else wants Basic
credentials (a token as user name or as password).
"""

import asyncio
import gzip
import re

from starlette.requests import Request
from starlette.responses import Response

from adapters.simulated.gitea_rest import GiteaRest, allows
from adapters.simulated.gitea_state import GiteaError, Repo, Token, User

GIT_PATH = re.compile(
    r"/(?P<owner>[^/]+)/(?P<repo>[^/]+?)(?:\.git)?/(?P<rest>info/refs|HEAD|git-upload-pack|git-receive-pack)"
)


class GiteaHttpGit:
    """Answers ``/owner/repo.git/…``."""

    def __init__(self, rest: GiteaRest) -> None:
        self.rest = rest
        self.state = rest.state

    async def answer(self, request: Request) -> Response | None:
        """Handle one request of a git client; None if the path is none of git's."""
        match = GIT_PATH.fullmatch(request.scope["path"])
        if match is None:
            return None
        service = request.query_params.get("service") or match["rest"]
        writes = service == "git-receive-pack"
        repo = self.state.find_repo(match["owner"], match["repo"])
        if repo is None:
            target = self.state.redirected(match["owner"], match["repo"])
            if target is not None:
                query = f"?{request.url.query}" if request.url.query else ""
                place = f"/{self.state.full_name(target)}/{match['rest']}{query}"
                return Response(status_code=301, headers={"Location": place})
        user: User | None = None
        if repo is None or repo.private or writes:
            refusal, user = self._admit(request, repo, writes=writes)
            if refusal is not None:
                return refusal
        if repo is None:
            return _missing()
        return await self._backend(request, repo, match["rest"], user, writes=writes)

    def _admit(
        self, request: Request, repo: Repo | None, *, writes: bool
    ) -> tuple[Response | None, User | None]:
        try:
            user, token = self.rest.authenticate(request.headers.get("authorization", ""))
        except GiteaError:
            user, token = None, None
        if user is None:
            challenge = {"WWW-Authenticate": 'Basic realm="Gitea"'}
            return Response("Unauthorized\n", 401, headers=challenge), None
        if repo is None or self.state.access(repo, user) == "none":
            return _missing(), user
        if not self._in_scope(token, writes=writes):
            return Response("Forbidden\n", 403), user
        if writes and repo.archived:
            text = (
                "This repo is archived. You can view files and clone it, "
                "but cannot push or open issues/pull-requests."
            )
            return Response(text, 403), user
        if writes and not self.state.may_write(repo, user):
            return Response("User permission denied for writing.\n", 403), user
        return None, user

    @staticmethod
    def _in_scope(token: Token | None, *, writes: bool) -> bool:
        return token is None or allows(token, "repository", "write" if writes else "read")

    async def _backend(
        self, request: Request, repo: Repo, rest: str, user: User | None, *, writes: bool
    ) -> Response:
        git = self.state.git
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        before = git.refs(repo.id) if writes else {}
        environment = git.environment() | {
            "GIT_PROJECT_ROOT": str(git.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": f"/{repo.id}.git/{rest}",
            "QUERY_STRING": request.url.query,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            **self._hook_environment(repo, user),
        }
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate(body)
        if writes and rest == "git-receive-pack" and user is not None:
            self.state.pushed(user, repo, before)
        return _cgi(output)

    def _hook_environment(self, repo: Repo, user: User | None) -> dict[str, str]:
        open_pulls = [
            f"{i.pull.head_branch}={i.number}"
            for i in self.state.issues_of(repo)
            if i.pull and i.state == "open" and i.pull.head_repo_id == repo.id
        ]
        environment = {
            "SIMULATED_DIALECT": "1.22" if self.state.shapes.old else "1.27",
            "SIMULATED_PROTECTED": " ".join(repo.protected),
            "SIMULATED_DEFAULT_BRANCH": repo.default_branch,
            "SIMULATED_PULLS": " ".join(open_pulls),
            "SIMULATED_REPO_URL": f"{self.state.shapes.base_url}/{self.state.full_name(repo)}",
        }
        if user is not None:
            environment["REMOTE_USER"] = user.login
        return environment


def _missing() -> Response:
    return Response("Repository not found\n", 404, headers={"Content-Type": "text/plain; charset=utf-8"})


def _cgi(output: bytes) -> Response:
    head, _, body = output.partition(b"\r\n\r\n")
    status, headers = 200, {}
    for line in head.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        elif value:
            headers[name] = value.strip()
    return Response(body, status, headers=headers)
