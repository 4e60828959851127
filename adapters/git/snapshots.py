"""The whole state of a workspace in one look: what is in progress, where its head is, and a digest of everything.

The digest covers head and branch, the index, every local branch, tag and stash, and the *bytes* of every file that
is not ignored, computed with a repository configuration of our own (no filters, no line-end conversion, no flags
that hide changes), so that neither a hostile nor a clever configuration can make a change invisible. The price is
one full read of the work tree. What the look stores (blobs, trees) lies unreferenced in the object store.
"""

import hashlib
import re
from dataclasses import dataclass

from adapters.git.in_box import BoxedGit, GitRefused

_SCRIPT = r"""
cd "$GIT_WORK_TREE"
scratch=$(mktemp -d)
say() { printf '%s %s\n' "$1" "$2"; }
for name in index.lock HEAD.lock config.lock packed-refs.lock shallow.lock; do
    [ ! -e "$GIT_DIR/$name" ] || say found "lock $name"
done
find "$GIT_DIR/refs" -name '*.lock' | head -n 3 | while read -r name; do say found "lock ${name#"$GIT_DIR/"}"; done
for name in MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD BISECT_LOG rebase-merge rebase-apply sequencer; do
    [ ! -e "$GIT_DIR/$name" ] || say found "in_progress $name"
done
git ls-files -u -z | tr '\0\n' '\n?' | cut -f2 | sort -u | head -n 3 >"$scratch/conflicts"
while read -r name; do say found "conflict $name"; done <"$scratch/conflicts"
head=$(git rev-parse -q --verify 'HEAD^{commit}' || :)
say head "$head"
say branch "$(git symbolic-ref -q HEAD || :)"
say head_tree "$(git rev-parse -q --verify 'HEAD^{tree}' || :)"
say entries "$(git ls-files -s -z | git hash-object --stdin)"
index=$(git write-tree 2>/dev/null || :)
say index "$index"
start=${index:-${head:---empty}}
git for-each-ref --format='%(refname) %(objectname)' >"$scratch/all"
grep -v -E '^refs/(turnkeeper|remotes/origin|remotes/pull)/' "$scratch/all" >"$scratch/refs" || :
say refs "$(git hash-object --stdin <"$scratch/refs")"
say branches "$(grep -c '^refs/heads/' "$scratch/refs" || :)"
grep '^refs/turnkeeper/' "$scratch/all" | while read -r name id; do say ref "$name $id"; done
export GIT_INDEX_FILE="$scratch/plain"
git read-tree $start
git add -A --ignore-errors 2>"$scratch/said" ||
    say unreadable "$(grep -E '^(error|fatal)' "$scratch/said" | head -n 1)"
say tree "$(git write-tree)"
git diff-index --cached --raw -z ${head:-$(git hash-object -t tree /dev/null)} >"$scratch/nested"
tr '\0\n' '\n?' <"$scratch/nested" | grep -A1 '^:[0-9]* 160000' | grep -v '^:' | head -n 20 | while read -r name; do
    [ "$name" = -- ] || say nested "$name"
done
format=$(git rev-parse --show-object-format)
objects="$GIT_DIR/objects"
exclude="$GIT_DIR/info/exclude"
export GIT_INDEX_FILE="$scratch/bytes"
work=$GIT_WORK_TREE
unset GIT_DIR GIT_WORK_TREE
git init -q --bare --object-format="$format" "$scratch/git"
mkdir -p "$scratch/git/info"
printf '* -text -ident -filter -working-tree-encoding\n' >"$scratch/git/info/attributes"
[ ! -f "$exclude" ] || cat "$exclude" >"$scratch/git/info/exclude"
export GIT_DIR="$scratch/git" GIT_WORK_TREE="$work" GIT_OBJECT_DIRECTORY="$objects"
git read-tree $start
git add -A --ignore-errors 2>/dev/null || :
say bytes "$(git write-tree)"
rm -rf "$scratch"
say complete yes
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that stops us, for people: ``code`` (``lock``, ``conflict``, …) and a bounded detail."""

    code: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A look at a workspace. ``tree`` is the work tree as git would commit it, ``bytes_tree`` as it lies there.

    ``branch`` is a full ref, empty when detached. ``refs`` are our own refs (``refs/turnkeeper/…``) with ids.
    ``nested`` are folders that are repositories of their own, which git can't take in.
    """

    head: str
    branch: str
    head_tree: str
    index_tree: str
    tree: str
    bytes_tree: str
    digest: str
    branches: int
    unreadable: str
    findings: tuple[Finding, ...]
    nested: tuple[str, ...]
    refs: dict[str, str]

    @property
    def dirty(self) -> bool:
        """Whether index or work tree differ from the head commit."""
        return bool(self.unreadable) or not (self.tree == self.index_tree == self.head_tree)


_ID = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})?")
_IDS = ("head", "head_tree", "index", "tree", "bytes")
_BRANCH = re.compile(r"(?:refs/heads/[^\x00-\x20\x7f~^:?*\[\\]{1,240})?")


def _believable(told: dict[str, str]) -> bool:
    """Whether every value has its form: a filter in the same box could have written anything."""
    return (
        all(_ID.fullmatch(told.get(name, "-")) for name in _IDS)
        and _BRANCH.fullmatch(told.get("branch", "-")) is not None
        and told.get("branches", "").isdigit()
    )


async def look(git: BoxedGit) -> Snapshot:
    """Take a snapshot; raises ``GitRefused`` (``workspace_git_failed``) where git can't read the repository."""
    done = await git.script(_SCRIPT)
    lines = [line.partition(" ") for line in done.text.split("\n")]
    told = {key: value for key, _, value in lines if key}
    if done.rc != 0 or told.get("complete") != "yes" or not _believable(told):
        raise GitRefused("snapshot", done)

    def each(wanted: str) -> list[str]:
        return [value[:300] for key, _, value in lines if key == wanted]

    covered = ("head", "branch", "entries", "refs", "bytes", "unreadable")
    digest = hashlib.sha256("\n".join(told.get(name, "") for name in covered).encode()).hexdigest()
    return Snapshot(
        head=told["head"],
        branch=told["branch"],
        head_tree=told["head_tree"],
        index_tree=told["index"],
        tree=told["tree"],
        bytes_tree=told["bytes"],
        digest=digest,
        branches=int(told["branches"]),
        unreadable=told.get("unreadable", ""),
        findings=tuple(
            Finding(code=code, detail=detail) for code, _, detail in (v.partition(" ") for v in each("found"))
        ),
        nested=tuple(each("nested")),
        refs={name: value for name, _, value in (v.partition(" ") for v in each("ref"))},
    )
