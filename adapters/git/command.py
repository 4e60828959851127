"""The one guarded runner of git on the trusted side, where the credential is.

No system's or user's configuration, no hooks, no fsmonitor, no submodules, no prompts, no redirects, no credential
helper. A token reaches git by an askpass helper that exists for one call and reads it from an inherited descriptor:
it never stands in argv, an environment, a URL, a file or git's configuration. Work trees are not touched here (a
hostile one runs commands on a mere ``git status``): see ``adapters.git.workspace``.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from domain.faults import Fault, Forbidden, NotFound, Unavailable

_MAX_OUTPUT = 16 * 1024 * 1024
_MAX_ERROR = 64 * 1024
_USER = "turnkeeper"  # Gitea takes a token as the password of any user name
_PASSED_ON = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH")
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.helper=",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "http.followRedirects=false",
    "http.cookieFile=",
    "http.proxy=",
    "protocol.allow=never",
    "protocol.http.allow=always",
    "protocol.https.allow=always",
    "gc.autoDetach=false",
    "maintenance.autoDetach=false",
    "advice.detachedHead=false",
    "init.defaultBranch=main",
)
_ASKPASS = (
    '#!/bin/sh\ncase "$1" in\nUsername*) printf "%s\\n" {user} ;;\n*) cat /dev/fd/{descriptor} ;;\nesac\n'
)
_AUTH = re.compile(
    r"Authentication failed|could not read (Username|Password)|returned error: 40[13]|HTTP 40[13]"
)
_MISSING = re.compile(r"repository '.*' not found|returned error: 404|does not appear to be a git repository")
_AWAY = re.compile(
    r"Could not resolve host|Failed to connect|[Cc]onnection (refused|reset|timed out)|Couldn't connect"
    r"|returned error: 5\d\d|Empty reply|early EOF|RPC failed|unexpected disconnect|timed out|SSL|TLS"
    r"|the remote end hung up|transfer closed|Recv failure"
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class GitOutput:
    """A git command that ended: its return code and bounded output; ``err`` is for classification only."""

    rc: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode("utf-8", errors="replace")


class GitCommand:
    """Runs git with a private, empty home. ``allow_file`` lets local paths be cloned (tests only)."""

    def __init__(
        self, home: Path, *, deadline: float = 120.0, allow_file: bool = False, program: str = "git"
    ) -> None:
        self._home = home
        self._deadline = deadline
        self._program = program
        self._settings = (*_SETTINGS, f"protocol.file.allow={'always' if allow_file else 'never'}")

    async def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        token: str | None = None,
        deadline: float | None = None,
        keep: Sequence[int] = (),
        ok: Sequence[int] = (0,),
        stdin: int | None = None,
    ) -> GitOutput:
        """Run one command in ``cwd`` and return its output.

        ``keep``: descriptors that git inherits (a lock that is to live as long as git). ``ok``: return codes that
        are answers. ``stdin``: a descriptor that git reads, from where it stands. Raises ``git_timeout``,
        ``git_unreachable`` (``Unavailable``), ``git_auth_failed`` (``Forbidden``), ``git_not_found`` (``NotFound``)
        and ``git_failed`` (``Fault``); what git said is logged without secrets and addresses, never part of the
        fault.
        """
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        line = [self._program]
        for setting in self._settings:
            line += ["-c", setting]
        helper = _Askpass(self._home, token) if token else None
        try:
            return await self._guarded(
                [*line, *arguments],
                cwd or self._home,
                helper,
                deadline=deadline or self._deadline,
                keep=tuple(keep),
                ok=tuple(ok),
                stdin=stdin,
            )
        finally:
            if helper is not None:
                helper.close()

    def _environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return passed | {
            "HOME": str(self._home),
            "XDG_CONFIG_HOME": str(self._home),
            "LC_ALL": "C",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CEILING_DIRECTORIES": str(self._home.parent),
        }

    async def _guarded(
        self,
        line: list[str],
        cwd: Path,
        helper: "_Askpass | None",
        *,
        deadline: float,
        keep: tuple[int, ...],
        ok: tuple[int, ...],
        stdin: int | None,
    ) -> GitOutput:
        environment = self._environment()
        if helper is not None:
            environment["GIT_ASKPASS"] = str(helper.path)
            keep = (*keep, helper.descriptor)
        try:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *line,
                    cwd=cwd,
                    env=environment,
                    pass_fds=keep,
                    start_new_session=True,
                    stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:  # else a half-started git would be lost sight of
                process = await starting
                _end_group(process)
                await process.wait()
                raise
        except OSError as error:
            raise Fault(f"git could not be started: {error.strerror}", code="git_failed") from None
        operation = next(
            (part for part in line[1 + 2 * len(self._settings) :] if not part.startswith("-")), "git"
        )
        params = {"operation": operation}
        try:
            async with asyncio.timeout(deadline):
                out, err = await _outputs(process)
                rc = await process.wait()
        except TimeoutError:
            raise Unavailable("git took too long and was ended.", code="git_timeout", params=params) from None
        finally:
            _end_group(process)
            await asyncio.shield(process.wait())
        text = _scrubbed(err.decode("utf-8", errors="replace"), self._home.parent)
        if out is None:
            raise Fault("git said more than was expected.", code="git_failed", params=params)
        if rc not in ok:
            _log.info("git_failed", operation=operation, rc=rc, said=text[-1000:])
            raise _fault(text, params | {"rc": rc})
        return GitOutput(rc=rc, out=out, err=text)


class _Askpass:
    """A helper script in a private folder and the descriptor that it reads; both end with the call."""

    def __init__(self, home: Path, token: str) -> None:
        self.descriptor = os.memfd_create("askpass", os.MFD_CLOEXEC)
        os.write(self.descriptor, token.encode() + b"\n")
        self._folder = Path(tempfile.mkdtemp(prefix="askpass-", dir=home))
        self.path = self._folder / "askpass"
        self.path.write_text(_ASKPASS.format(user=_USER, descriptor=self.descriptor), encoding="ascii")
        self.path.chmod(0o700)

    def close(self) -> None:
        os.close(self.descriptor)
        shutil.rmtree(self._folder, ignore_errors=True)


async def _outputs(process: asyncio.subprocess.Process) -> tuple[bytes | None, bytes]:
    """Both streams to their end; None instead of too long an output, only the end of too long an error."""
    if process.stdout is None or process.stderr is None:  # pragma: no cover - always piped
        raise RuntimeError("git has pipes")
    err = bytearray()

    async def errors(stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(8192):
            err.extend(chunk)
            del err[:-_MAX_ERROR]

    draining = asyncio.create_task(errors(process.stderr))
    try:
        out = bytearray()
        while chunk := await process.stdout.read(65536):
            if len(out) > _MAX_OUTPUT:
                _end_group(process)  # and read on to the end, so that the pipe closes
            else:
                out += chunk
        await draining
        return (bytes(out) if len(out) <= _MAX_OUTPUT else None), bytes(err)
    finally:
        draining.cancel()


def _end_group(process: asyncio.subprocess.Process) -> None:
    """Kill git and its helpers; the group's number is ours as long as its leader was not waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _scrubbed(text: str, root: Path) -> str:
    """What git said, without addresses and our own paths."""
    text = re.sub(r"\b[a-z+]+://[^\s'\"]+", "<url>", text)
    return text.replace(str(root), "<root>")


def _fault(text: str, params: dict[str, object]) -> Fault:
    if _AUTH.search(text):
        return Forbidden(
            "Gitea refused the credential for this repository.", code="git_auth_failed", params=params
        )
    if _MISSING.search(text):
        return NotFound(
            "There is no such repository, or the bot can't see it.", code="git_not_found", params=params
        )
    if _AWAY.search(text):
        return Unavailable("The repository's server does not answer.", code="git_unreachable", params=params)
    return Fault("git failed; the log says how.", code="git_failed", params=params)
