"""A world of real git repositories behind a real ``git http-backend``, as Gitea serves them."""

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

TOKEN = "a-token-for-the-tests-7f3c"


@dataclass(kw_only=True)
class GitWorld:
    """Bare repositories under ``root``; ``private`` ones want the token; ``fail`` answers all with that status."""

    root: Path
    url: str = ""
    private: set[str] = field(default_factory=set)
    fail: int = 0
    redirect: str = ""
    hang: threading.Event | None = None
    asked: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run git as an innocent outsider would."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@example.org",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "protocol.file.allow",  # the outsider pushes through the file system
            "GIT_CONFIG_VALUE_0": "always",
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd or self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def create(self, name: str = "acme/widget", *, branch: str = "main", empty: bool = False) -> Path:
        """A bare repository with one commit, and beside it the clone of its author; returns the clone."""
        bare = self.root / f"{name}.git"
        self.git("init", "--quiet", "--bare", "-b", branch, str(bare))
        work = self.root / "authors" / name
        self.git("init", "--quiet", "-b", branch, str(work))
        self.git("remote", "add", "origin", str(bare), cwd=work)
        if not empty:
            self.commit(work, {"README.md": "hello\n", "src/one.txt": "1\n"}, "first")
        return work

    def commit(self, work: Path, files: dict[str, str], message: str, *, to: str = "") -> str:
        """Write files, commit and push (to the given ref, else the branch's own); the commit's id."""
        for name, content in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(content)
        self.git("add", "-A", cwd=work)
        self.git("commit", "--quiet", "-m", message, cwd=work)
        self.git("push", "--quiet", "--force", "origin", f"HEAD:{to}" if to else "HEAD", cwd=work)
        return self.git("rev-parse", "HEAD", cwd=work)


def _handler(world: GitWorld) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            credential = self.headers.get("Authorization", "")
            world.requests.append((self.path, credential))
            world.asked.set()
            if world.hang is not None:
                world.hang.wait(60)
                return
            if world.redirect:
                self.send_response(302)
                self.send_header("Location", world.redirect + self.path)
                self.end_headers()
                return
            name = parts.path.strip("/").partition(".git/")[0]
            wanted = "Basic " + base64.b64encode(f"turnkeeper:{TOKEN}".encode()).decode()
            status = world.fail
            if not status and name in world.private and credential != wanted:
                status = 401
            if not status and not (world.root / f"{name}.git").is_dir():
                status = 404
            if status:
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="Gitea"')
                self.end_headers()
                return
            self._backend(parts.path, parts.query)

        def _backend(self, path: str, query: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
            else:
                body = self.rfile.read(length)
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(world.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_GLOBAL": "/dev/null",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = [line.partition(": ")[::2] for line in head.decode().split("\r\n")]
            status = next((int(value.split()[0]) for key, value in fields if key == "Status"), 200)
            self.send_response(status)
            for key, value in fields:
                if key != "Status":
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


@contextmanager
def git_world(root: Path) -> Iterator[GitWorld]:
    """A served world on a port of its own until the context ends."""
    root.mkdir(parents=True, exist_ok=True)
    world = GitWorld(root=root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(world))
    world.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield world
    finally:
        if world.hang is not None:
            world.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()
