"""The bare repositories of the stand-in Gitea: plain git, started as a program, no shell, no user configuration."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

EMPTY = "0" * 40

_PRE_RECEIVE = """#!/bin/sh
while read -r old new ref; do
    for branch in $SIMULATED_PROTECTED; do
        if [ "$ref" = "refs/heads/$branch" ]; then
            if [ "$SIMULATED_DIALECT" = "1.22" ]; then
                printf '\\nGitea: Not allowed to push to protected branch %s\\n' "$branch" >&2
            else
                printf '\\nerror:\\nerror: Not allowed to push to protected branch %s\\nerror:\\n' "$branch" >&2
            fi
            exit 1
        fi
    done
done
exit 0
"""

_UPDATE = """#!/bin/sh
case "$1" in refs/pull/*) exit 1 ;; esac
exit 0
"""

_POST_RECEIVE = """#!/bin/sh
total=0
while read -r old new ref; do
    total=$((total + 1))
    case "$ref" in refs/heads/*) branch=${ref#refs/heads/} ;; *) continue ;; esac
    case "$new" in *[!0]*) ;; *) continue ;; esac
    [ "$branch" = "$SIMULATED_DEFAULT_BRANCH" ] && continue
    existing=
    for pair in $SIMULATED_PULLS; do
        [ "${pair%%=*}" = "$branch" ] && existing=${pair##*=}
    done
    if [ -n "$existing" ]; then
        printf '\\nVisit the existing pull request:\\n  %s/pulls/%s\\n\\n' "$SIMULATED_REPO_URL" "$existing" >&2
    elif [ "$SIMULATED_DIALECT" = "1.22" ]; then
        printf "\\nCreate a new pull request for '%s':\\n  %s/compare/%s...%s\\n\\n" \\
            "$branch" "$SIMULATED_REPO_URL" "$SIMULATED_DEFAULT_BRANCH" "$branch" >&2
    else
        printf "\\nCreate a new pull request for '%s':\\n  %s/pulls/new/%s\\n\\n" \\
            "$branch" "$SIMULATED_REPO_URL" "$branch" >&2
    fi
done
if [ "$SIMULATED_DIALECT" = "1.22" ]; then
    printf '. Processing %s references\\nProcessed %s references in total\\n' "$total" "$total" >&2
fi
exit 0
"""


_CONFIG = """[http]
\treceivepack = true
[uploadpack]
\tallowFilter = true
\tallowAnySHA1InWant = true
"""


class GitRefusedError(Exception):
    """Git left with another status than 0; the message is what it said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedFile:
    """One file of a difference: ``status`` is added, changed, deleted or renamed."""

    path: str
    status: str
    additions: int
    deletions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One commit as git knows it; times are RFC 3339."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    author: tuple[str, str, str]
    committer: tuple[str, str, str]
    message: str


class GitStore:
    """Bare repositories below one folder, each named by its repository's id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)
        self.home = root / "home"
        self.home.mkdir(exist_ok=True)

    def path(self, repo_id: int) -> Path:
        """The bare repository of that id."""
        return self.root / f"{repo_id}.git"

    def environment(self) -> dict[str, str]:
        """The whole environment of every git that is started here."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }

    def run(
        self,
        repo_id: int,
        *args: str,
        stdin: bytes | None = None,
        extra: Mapping[str, str] | None = None,
        ok: Sequence[int] = (0,),
    ) -> bytes:
        """Run git in a bare repository and return its output; raises ``GitRefusedError``."""
        done = subprocess.run(
            ["git", "-C", str(self.path(repo_id)), *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=self.environment() | dict(extra or {}),
            check=False,
        )
        if done.returncode not in ok:
            raise GitRefusedError(f"git {args[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def text(self, repo_id: int, *args: str, extra: Mapping[str, str] | None = None) -> str:
        """The same as text, without the last line break."""
        return self.run(repo_id, *args, extra=extra).decode(errors="replace").rstrip("\n")

    def create(self, repo_id: int, default_branch: str) -> None:
        """Make an empty bare repository with Gitea's refusing hooks."""
        path = self.path(repo_id)
        subprocess.run(
            ["git", "init", "-q", "--bare", f"--initial-branch={default_branch}", str(path)],
            env=self.environment(),
            check=True,
            capture_output=True,
        )
        with (path / "config").open("a") as config:
            config.write(_CONFIG)
        self._write_hooks(path)

    def _write_hooks(self, path: Path) -> None:
        folder = path / "hooks"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, script in (
            ("pre-receive", _PRE_RECEIVE),
            ("update", _UPDATE),
            ("post-receive", _POST_RECEIVE),
        ):
            target = folder / name
            target.write_text(script)
            target.chmod(0o755)

    def copy(self, source: int, target: int, default_branch: str) -> None:
        """Fill a new repository with the branches and tags of another."""
        self.create(target, default_branch)
        self.run(
            target,
            "fetch",
            "-q",
            str(self.path(source)),
            "+refs/heads/*:refs/heads/*",
            "+refs/tags/*:refs/tags/*",
        )

    def delete(self, repo_id: int) -> None:
        """Remove a repository from the disk."""
        shutil.rmtree(self.path(repo_id), ignore_errors=True)

    def refs(self, repo_id: int) -> dict[str, str]:
        """All refs with their objects."""
        lines = self.text(repo_id, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def branches(self, repo_id: int) -> dict[str, str]:
        """Branches with their commits."""
        prefix = "refs/heads/"
        return {r[len(prefix) :]: sha for r, sha in self.refs(repo_id).items() if r.startswith(prefix)}

    def resolve(self, repo_id: int, name: str) -> str | None:
        """The commit that a branch, tag, ref or id means."""
        for candidate in (f"refs/heads/{name}", f"refs/tags/{name}", name):
            found = self.run(
                repo_id,
                "rev-parse",
                "-q",
                "--verify",
                "--end-of-options",
                f"{candidate}^{{commit}}",
                ok=(0, 1, 128),
            )
            if found.strip():
                return found.decode().strip()
        return None

    def set_ref(self, repo_id: int, ref: str, sha: str | None) -> None:
        """Point a ref at a commit, or delete it."""
        if sha is None:
            self.run(repo_id, "update-ref", "-d", ref)
        else:
            self.run(repo_id, "update-ref", ref, sha)

    def fetch_into(self, target: int, source: int, sha: str, ref: str) -> None:
        """Bring a commit of another repository under a ref of this one."""
        if target != source:
            self.run(target, "fetch", "-q", "--no-tags", str(self.path(source)), sha)
        self.set_ref(target, ref, sha)

    def commit(
        self,
        repo_id: int,
        *,
        branch: str,
        message: str,
        author: tuple[str, str],
        when: str,
        files: Mapping[str, bytes | None],
        parent: str | None,
    ) -> str:
        """Put files (None deletes one) on top of a parent, move the branch there and return the new commit."""
        seconds = int(datetime.fromisoformat(when).timestamp())
        who = f"{author[0]} <{author[1]}> {seconds} +0000"
        stream = [f"commit refs/heads/{branch}\nmark :1\nauthor {who}\ncommitter {who}\n".encode()]
        stream.append(b"data %d\n%s\n" % (len(message.encode()), message.encode()))
        if parent:
            stream.append(f"from {parent}\n".encode())
        for name, content in files.items():
            if content is None:
                stream.append(f"D {name}\n".encode())
            else:
                stream.append(f"M 100644 inline {name}\ndata {len(content)}\n".encode() + content + b"\n")
        stream.append(b"\nget-mark :1\ndone\n")
        made = self.run(repo_id, "fast-import", "--quiet", "--done", "--force", stdin=b"".join(stream))
        return made.decode().strip()

    def commit_tree(
        self,
        repo_id: int,
        *,
        tree: str,
        parents: Iterable[str],
        message: str,
        author: tuple[str, str],
        when: str,
    ) -> str:
        """Make a commit object."""
        name, email = author
        who = {
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": email,
            "GIT_COMMITTER_DATE": when,
        }
        flags = [flag for parent in parents for flag in ("-p", parent)]
        out = self.run(repo_id, "commit-tree", tree, *flags, stdin=message.encode(), extra=who)
        return out.decode().strip()

    def merge_base(self, repo_id: int, one: str, other: str) -> str | None:
        """The best common ancestor."""
        out = self.run(repo_id, "merge-base", one, other, ok=(0, 1)).decode().strip()
        return out or None

    def is_ancestor(self, repo_id: int, old: str, new: str) -> bool:
        """Whether ``old`` is contained in ``new``."""
        return self.merge_base(repo_id, old, new) == old

    def merge_tree(self, repo_id: int, base: str, head: str) -> str | None:
        """The tree of a merge without conflicts, else None."""
        out = self.run(repo_id, "merge-tree", "--write-tree", base, head, ok=(0, 1)).decode()
        tree = out.splitlines()[0] if out else ""
        clean = len(out.strip().splitlines()) == 1
        return tree if clean else None

    def changes(self, repo_id: int, old: str, new: str) -> list[ChangedFile]:
        """The files that differ between two commits."""
        states = {"A": "added", "D": "deleted", "M": "changed", "R": "renamed", "T": "changed"}
        named = (
            self.run(repo_id, "diff", "--no-renames", "--name-status", "-z", old, new).decode().split("\0")
        )
        kinds = {named[i + 1]: states.get(named[i][:1], "changed") for i in range(0, len(named) - 1, 2)}
        found = []
        for line in (
            self.run(repo_id, "diff", "--no-renames", "--numstat", "-z", old, new).decode().split("\0")
        ):
            if not line:
                continue
            added, deleted, path = line.split("\t", 2)
            found.append(
                ChangedFile(
                    path=path,
                    status=kinds.get(path, "changed"),
                    additions=int(added) if added != "-" else 0,
                    deletions=int(deleted) if deleted != "-" else 0,
                )
            )
        return found

    def hunk(self, repo_id: int, old: str, new: str, path: str, line: int) -> str:
        """The hunk of a file's difference up to a line of its new side (an old line is negative)."""
        text = self.text(repo_id, "diff", "-U3", old, new, "--", path)
        kept: list[str] = []
        old_line = new_line = 0
        for row in text.splitlines():
            if row.startswith("@@"):
                before, after = row.split(" ")[1:3]
                old_line = int(before[1:].split(",")[0]) - 1
                new_line = int(after[1:].split(",")[0]) - 1
                kept = [row[: row.index("@@", 2) + 2]]
                continue
            if not kept:
                continue
            kept.append(row)
            old_line += row[:1] in (" ", "-")
            new_line += row[:1] in (" ", "+")
            if (line > 0 and new_line == line) or (line < 0 and old_line == -line):
                return "\n".join(kept)
        return ""

    def commits(self, repo_id: int, tip: str, *, exclude: str | None = None, limit: int = 50) -> list[Commit]:
        """Commits reachable from a tip, newest first."""
        shape = "%H%x1f%T%x1f%P%x1f%an%x1f%ae%x1f%aI%x1f%cn%x1f%ce%x1f%cI%x1f%B%x1e"
        args = ["log", f"--format={shape}", f"--max-count={limit}", tip]
        if exclude and exclude != EMPTY:
            args.append(f"^{exclude}")
        found = []
        for record in self.text(repo_id, *args).split("\x1e"):
            parts = record.strip("\n").split("\x1f")
            if len(parts) == 10:
                found.append(
                    Commit(
                        sha=parts[0],
                        tree=parts[1],
                        parents=tuple(parts[2].split()),
                        author=(parts[3], parts[4], parts[5]),
                        committer=(parts[6], parts[7], parts[8]),
                        message=parts[9].rstrip("\n") + "\n",
                    )
                )
        return found

    def entry(self, repo_id: int, commit: str, path: str) -> tuple[str, str, int] | None:
        """Kind (blob, tree), object id and size of a path in a commit; None if there is nothing."""
        if not path:
            return ("tree", self.text(repo_id, "rev-parse", f"{commit}^{{tree}}"), 0)
        rows = self.listing(repo_id, commit, path)
        return rows[0][1:] if rows else None

    def listing(self, repo_id: int, commit: str, path: str) -> list[tuple[str, str, str, int]]:
        """Path, kind, object id and size of what ``ls-tree`` finds (a folder's content with ``path/``)."""
        args = ["ls-tree", "-l", "-z", commit]
        if path:
            args += ["--", path]
        rows = []
        for record in self.run(repo_id, *args).decode().split("\0"):
            if record:
                meta, name = record.split("\t", 1)
                _, kind, sha, size = meta.split()
                rows.append((name, kind, sha, int(size) if size != "-" else 0))
        return rows

    def blob(self, repo_id: int, sha: str) -> bytes:
        """The content of a file."""
        return self.run(repo_id, "cat-file", "blob", sha)

    def size_kib(self, repo_id: int) -> int:
        """What the repository takes on the disk, in KiB."""
        total = sum(p.stat().st_size for p in self.path(repo_id).rglob("*") if p.is_file())
        return max(1, total // 1024)
