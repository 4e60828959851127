"""One request to Gitea, and what its failure means. The only file that knows the HTTP library.

The token stands in the ``Authorization`` header and nowhere else; proxies, ``.netrc`` and certificates named by the
environment are not looked at, for they could change that. Redirects are followed for reads only, at the same address
only: Gitea answers 301 or 307 for a renamed repository, and a write that follows a 301 is lost (facts, REST).
"""

import asyncio
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import httpx
import orjson

from adapters.gitea.answers import unreadable
from domain.gitea import GiteaAway, GiteaFault, GiteaNotFound, Outcome

Method = Literal["GET", "POST", "PATCH", "PUT", "DELETE"]

REDIRECTS = 3
MESSAGE_LIMIT = 200

_TOKEN = re.compile(r"[!-~]{1,500}")
_SCOPES = re.compile(r"required scope.*?\[([^\]]*)\]")
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class Answer:
    """A successful answer: ``http_status``, ``data`` (JSON, None without a body), ``total`` (``X-Total-Count``)."""

    def __init__(self, http_status: int, data: Any, total: int | None) -> None:  # noqa: ANN401 - JSON
        self.http_status = http_status
        self.data = data
        self.total = total


class Requests:
    """Requests below ``<base_url>/api/v1``.

    ``timeout`` in seconds, for connecting and for each wait on the answer; a whole exchange has three times as long.
    """

    def __init__(self, base_url: str, token: str, *, timeout: float = 10.0, connections: int = 10) -> None:
        if not _TOKEN.fullmatch(token):
            raise ValueError("a token is letters, digits and signs of ASCII without spaces")
        self._deadline = 3 * timeout
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/") + "/api/v1/",
            headers={
                "Authorization": f"token {token}",
                "Accept": "application/json",
                "User-Agent": "turnkeeper",
            },
            timeout=httpx.Timeout(timeout),
            limits=httpx.Limits(max_connections=connections),
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(
        self,
        method: Method,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> Answer:
        """One request; ``path`` relative and quoted. Raises ``GiteaFault``."""
        content = None if body is None else orjson.dumps(dict(body))
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = self._client.build_request(method, path, content=content, params=query, headers=headers)
        response = await self._once(request)
        hops = 0
        while response.is_redirect:
            if method != "GET":
                _renamed(response)
            if hops == REDIRECTS:
                _redirected(response)
            hops += 1
            response = await self._once(self._followed(request, response))
        return _answer(response)

    def _followed(self, request: httpx.Request, response: httpx.Response) -> httpx.Request:
        try:
            target = request.url.join(response.headers["Location"])
        except (KeyError, httpx.InvalidURL):
            _redirected(response)
        if (target.scheme, target.host, target.port) != (
            request.url.scheme,
            request.url.host,
            request.url.port,
        ):
            _redirected(response)
        return self._client.build_request("GET", target)

    async def _once(self, request: httpx.Request) -> httpx.Response:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._client.send(request)
        except TimeoutError:
            raise _away("Gitea did not answer in time", "unknown", "deadline") from None
        except httpx.HTTPError as error:
            outcome: Outcome = "not_sent" if isinstance(error, _NOT_SENT) else "unknown"
            slow = isinstance(error, httpx.TimeoutException)
            text = "Gitea did not answer in time" if slow else "Gitea could not be reached, or broke off"
            raise _away(text, outcome, type(error).__name__) from None


def _away(text: str, outcome: Outcome, cause: str) -> GiteaAway:
    return GiteaAway(text, code="gitea_unavailable", outcome=outcome, params={"cause": cause})


def _answer(response: httpx.Response) -> Answer:
    status = response.status_code
    if status >= 400:
        _failed(response)
    data = None
    if response.content:
        try:
            data = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            raise unreadable(status) from None
    total = response.headers.get("X-Total-Count", "")
    return Answer(status, data, int(total) if total.isdecimal() else None)


def _message(response: httpx.Response) -> str:
    """Gitea's own words, bounded; nothing of a page that something else sent."""
    try:
        data = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return ""
    message = data.get("message") if isinstance(data, dict) else None
    return message[:MESSAGE_LIMIT] if isinstance(message, str) else ""


def _failed(response: httpx.Response) -> NoReturn:
    status, message = response.status_code, _message(response)
    params: dict[str, object] = {"gitea_message": message} if message else {}
    outcome: Outcome = "refused"
    code, text = "gitea_refused", f"Gitea refused this request ({status})"
    if status >= 500 or status in {408, 429}:
        code, text = "gitea_unavailable", f"Gitea, or what stands before it, fails ({status})"
        outcome = "refused" if status == 429 else "unknown"
    elif status == 401:
        code, text = "gitea_token_invalid", "Gitea does not know this token: give the bot's account a new one"
    elif status == 404:
        code, text = "gitea_not_found", "Gitea has no such thing, or does not show it to the bot"
    elif status == 423 and "archived" in message:
        code, text = "gitea_archived", "the repository is archived"
    elif status == 423 or (status == 403 and "locked" in message):
        code, text = "gitea_locked", "the issue or pull request is locked"
    elif status == 403 and "required scope" in message:
        found = _SCOPES.search(message)
        scope = found[1] if found else "unknown"
        params["scope"] = scope
        code, text = "gitea_scope_missing", f"the token lacks the scope {scope}: make one that has it"
    elif status == 403:
        code, text = "gitea_forbidden", "the bot's account may not do this"
    leaf = {"gitea_unavailable": GiteaAway, "gitea_not_found": GiteaNotFound}.get(code, GiteaFault)
    raise leaf(text, code=code, outcome=outcome, http_status=status, params=params)


def _renamed(response: httpx.Response) -> NoReturn:
    raise GiteaFault(
        "the repository has another name now: ask for it by its id, then write again",
        code="repository_renamed",
        outcome="refused",
        http_status=response.status_code,
    )


def _redirected(response: httpx.Response) -> NoReturn:
    raise GiteaFault(
        "Gitea's address redirects to another one: configure that one",
        code="gitea_redirected",
        outcome="refused",
        http_status=response.status_code,
    )
