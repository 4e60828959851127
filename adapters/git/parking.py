"""Leaving and entering a workspace without losing anything.

A parked commit holds the whole work tree as its tree (untracked files too). Its parents are the head commit (and so
every unpublished commit below it), a commit of the index, one of the files' exact bytes where filters or line ends
make them differ, and what was parked under the same name before. Its message says from which session, branch and
digest it came. Files are only ever moved by git's own careful checkout between two commits that it knows: a file
that it would overwrite, ignored ones included, makes it refuse.
"""

import json
from dataclasses import asdict, dataclass

from adapters.git.in_box import BoxedGit, GitRefused
from adapters.git.names import SessionName
from adapters.git.snapshots import Snapshot

MOVE_REF = "refs/turnkeeper/move"
_PARK = """
head=$1 index=$2 tree=$3 bytes=$4 parked=$5 session=$6
parents=${head:+-p $head}
if [ -n "$index" ]; then parents="$parents -p $(git commit-tree "$index" ${head:+-p $head} -m index)"; fi
if [ "$bytes" != "$tree" ]; then parents="$parents -p $(git commit-tree "$bytes" -m bytes)"; fi
old=$(git rev-parse -q --verify "$parked^{commit}" || :)
parents="$parents ${old:+-p $old}"
made=$(printf '%s' "$MESSAGE" | git commit-tree "$tree" $parents)
printf 'update %s %s\\nupdate %s %s\\n' "$parked" "$made" "$session" "$made" | git update-ref --stdin
echo "$made"
"""
_DEPART = """
git read-tree "$1"
git update-ref --no-deref HEAD "$1"
git update-index -q --refresh || :
"""
_SETTLE = """
head=$1 branch=$2 index=$3
if [ -z "$head" ]; then
    git symbolic-ref HEAD "$branch"
elif [ -n "$branch" ]; then
    old=$(git rev-parse -q --verify "$branch^{commit}" || :)
    if [ -n "$old" ] && [ "$old" != "$head" ] && ! git merge-base --is-ancestor "$old" "$head"; then
        git update-ref "refs/turnkeeper/kept/$old" "$old"
    fi
    [ "$old" = "$head" ] || git update-ref "$branch" "$head"
    git symbolic-ref HEAD "$branch"
else
    git update-ref --no-deref HEAD "$head"
fi
if [ -n "$index" ]; then
    git read-tree "$index"
    git update-index -q --refresh || :
fi
"""


@dataclass(frozen=True, kw_only=True)
class Parked:
    """Leftovers of a task on ``ref``; ``left_in_place``: nested repositories, which stay where they are."""

    ref: str
    commit: str
    session_key: str
    task_id: str
    left_in_place: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the message of a parked commit says of the state that it holds."""

    session_key: str
    task_id: str
    head: str
    branch: str
    index: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Move:
    """The trace of our own last change of session, so that a killed one can be told from a stranger's change.

    ``origin``: digest before (empty: there was nothing recorded); ``reached``: digest after, empty while under way.
    """

    origin: str
    session_key: str
    task_id: str
    reached: str = ""


def session_ref(name: SessionName) -> str:
    """Where a session's parked state waits for its return."""
    return f"refs/turnkeeper/session/{name.label}"


def base_ref(name: SessionName) -> str:
    """The upstream commit on which a session's branch was last placed."""
    return f"refs/turnkeeper/base/{name.label}"


async def park(git: BoxedGit, state: Snapshot, ref: str, name: SessionName, origin: Origin) -> str:
    """Store the whole present state on ``ref`` and for the session's return; files are not touched. The commit."""
    made = await git.script(
        _PARK,
        state.head,
        state.index_tree,
        state.tree,
        state.bytes_tree,
        ref,
        session_ref(name),
        env={
            "MESSAGE": f"Leftovers of {origin.task_id}\n\n"
            + json.dumps(asdict(origin), sort_keys=True)
            + "\n"
        },
    )
    if made.rc != 0:
        raise GitRefused("park", made)
    return made.text.strip()


async def origin_of(git: BoxedGit, commit: str) -> Origin | None:
    """What a parked commit's message says; None if it is not one of ours."""
    message = (await git.git("cat-file", "commit", commit)).partition("\n\n")[2]
    try:
        told = json.loads(message.partition("\n\n")[2])
        return Origin(**{field: str(told[field]) for field in Origin.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        return None


async def depart(git: BoxedGit, commit: str) -> None:
    """Make head and index those of a commit that holds exactly the present files; the files are not touched."""
    await _ran(git, "depart", _DEPART, commit)


async def travel(git: BoxedGit, commit: str) -> None:
    """Git's own careful checkout; raises ``GitRefused`` and changes nothing where a file would be lost."""
    await git.git("checkout", "--quiet", "--no-overwrite-ignore", "--detach", commit, "--")


async def settle(git: BoxedGit, head: str, branch: str, index: str = "") -> None:
    """Put head (and index) where they belong; files are not touched, a commit that a branch loses is kept."""
    await _ran(git, "settle", _SETTLE, head, branch, index)


async def _ran(git: BoxedGit, operation: str, script: str, *arguments: str) -> None:
    done = await git.script(script, *arguments)
    if done.rc != 0:
        raise GitRefused(operation, done)


async def write_move(git: BoxedGit, move: Move) -> None:
    """Leave the trace of a change of session."""
    told = json.dumps(asdict(move), sort_keys=True)
    script = 'git update-ref "$1" "$(printf %s "$TOLD" | git hash-object -w --stdin)"'
    done = await git.script(script, MOVE_REF, env={"TOLD": told})
    if done.rc != 0:
        raise GitRefused("move", done)


async def read_move(git: BoxedGit, state: Snapshot) -> Move | None:
    """The trace of the last change of session, None if there is none that can be read."""
    if MOVE_REF not in state.refs:
        return None
    try:
        told = json.loads(await git.git("cat-file", "blob", state.refs[MOVE_REF]))
        return Move(**{field: str(told[field]) for field in Move.__dataclass_fields__})
    except (ValueError, KeyError, TypeError, GitRefused):
        return None
