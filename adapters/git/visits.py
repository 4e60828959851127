"""One visit of a session to an existing workspace: whose state is there, and how to get where the session works.

Every step can be repeated: what is there is parked before anything moves, a trace of the move is left before it and
completed after it, and a parked state waits until its session has it back.
"""

from dataclasses import replace
from pathlib import Path

from adapters.git import parking
from adapters.git.in_box import BoxedGit, GitRefused
from adapters.git.names import SessionName, checked_ref, parked_ref, session_name
from adapters.git.parking import Move, Origin, Parked
from adapters.git.plans import Blocked, Left, Prepared, WorkspacePlan
from adapters.git.snapshots import Finding, Snapshot, look


async def fetch(git: BoxedGit, head_ref: str) -> None:
    """Take over what the mirror has: its branches as ``origin/*``, one pull request's head as ``pull/N``."""
    wanted = ["+refs/heads/*:refs/remotes/origin/*"]
    parts = head_ref.split("/")
    if parts[1] == "pull":
        wanted.append(f"+{checked_ref(head_ref)}:refs/remotes/pull/{parts[2]}")
    options = "--quiet --prune --no-tags --force --no-write-fetch-head --no-recurse-submodules"
    script = f'exec git fetch {options} -- "$MIRROR" "$@"'
    done = await git.script(script, *wanted)
    if done.rc != 0:
        raise GitRefused("fetch", done)


class Visit:
    """One preparation of an existing workspace, under its lock."""

    def __init__(self, git: BoxedGit, plan: WorkspacePlan, name: SessionName, upstream: str) -> None:
        self._git = git
        self._plan = plan
        self._name = name
        self._upstream = upstream
        self._standing_at: str | None = None  # the parked commit whose files a killed change left in place

    async def run(self) -> Prepared | Blocked:
        """Bring the workspace to the plan's session, or say why not; ``path`` and ``base`` are left to the caller."""
        state = await look(self._git)
        if state.findings:
            return Blocked(reasons=state.findings)
        present = await self._present(state)
        if isinstance(present, Blocked):
            return present
        await fetch(self._git, self._plan.head_ref)
        if present.session_key == self._plan.session_key and (present.digest == state.digest):
            return await self._continue(state)
        return await self._change(state, present)

    async def _present(self, state: Snapshot) -> Left | Blocked:
        """Whose state this is: the recorded one, one that our own killed change of session made, or unknown."""
        previous = self._plan.previous
        recorded = previous.digest if previous is not None else ""
        if previous is not None and recorded == state.digest:
            return previous
        move = await parking.read_move(self._git, state)
        if move is not None and move.origin == recorded:
            mine = Left(
                session_key=move.session_key,
                task_id=move.task_id,
                head=state.head,
                branch=state.branch,
                digest=state.digest,
                dirty=state.dirty,
            )
            if move.reached == state.digest:
                return mine
            if not move.reached and previous is not None and await self._under_way(state, previous, move):
                return replace(previous, digest="")
        fresh = previous is None and state.branches == 1 and state.head == self._base_of(state)
        if not state.dirty and (fresh or self._plan.unblocked):
            here = self._session_on(state) or self._plan.session_key
            return Left(
                session_key=previous.session_key if previous is not None else here,
                task_id=previous.task_id if previous is not None else self._plan.task_id,
                head=state.head,
                branch=state.branch,
                digest=state.digest,
                dirty=False,
            )
        code = "unknown_changes" if previous is not None else "unrecorded_workspace"
        return Blocked(reasons=(Finding(code=code, detail=f"head {state.head[:12]}, branch {state.branch}"),))

    async def _under_way(self, state: Snapshot, previous: Left, move: Move) -> bool:
        """Whether a killed change of session left this: all that was there is parked, and no file is unknown."""
        parked = state.refs.get(parked_ref(previous.task_id))
        origin = await parking.origin_of(self._git, parked) if parked else None
        if previous.dirty and (origin is None or origin.digest != previous.digest):
            return False
        if not state.dirty:
            return True
        waiting = state.refs.get(parking.session_ref(session_name(move.session_key)))
        for commit in (parked, waiting):
            if commit and state.tree == await self._git.git("rev-parse", f"{commit}^{{tree}}"):
                self._standing_at = commit
                return True
        return False

    def _session_on(self, state: Snapshot) -> str:
        """The session whose branch is checked out, empty if it is none's."""
        label = state.branch.removeprefix("refs/heads/turnkeeper/")
        kind, _, number = label.rpartition("-")
        return f"{self._plan.repo_key}:{kind.replace('-', '_')}:{number}" if label != state.branch else ""

    def _base_of(self, state: Snapshot) -> str | None:
        label = state.branch.removeprefix("refs/heads/turnkeeper/")
        return state.refs.get(f"refs/turnkeeper/base/{label}") if label != state.branch else None

    async def _is_behind(self, head: str) -> bool:
        done = await self._git.script('git merge-base --is-ancestor "$1" "$2"', self._upstream, head)
        return done.rc != 0

    async def _continue(self, state: Snapshot) -> Prepared | Blocked:
        """The same session: its own work stays; without any, it moves on with upstream."""
        waiting = state.refs.pop(parking.session_ref(self._name), None)
        if (
            waiting is not None
        ):  # parked by a change of session that then did not happen; its own ref keeps it
            await self._git.git("update-ref", "-d", parking.session_ref(self._name), waiting)
        own = state.dirty or state.branch != self._name.branch or state.head != self._base_of(state)
        if own or state.head == self._upstream:
            return self._ready(
                state.head, state.branch, continued=True, behind=await self._is_behind(state.head)
            )
        return await self._arrive(state, None, undo=None)

    async def _change(self, state: Snapshot, present: Left) -> Prepared | Blocked:
        """Another session: park what is there, then go where this session works."""
        under_way = not present.digest
        theirs = session_name(present.session_key)
        ref = parked_ref(present.task_id)
        parked = None
        undo = None
        own = state.dirty or state.branch != theirs.branch or state.head != self._base_of(state)
        if under_way:
            commit = state.refs.get(ref)
            if commit:
                parked = Parked(
                    ref=ref, commit=commit, session_key=present.session_key, task_id=present.task_id
                )
            if self._standing_at is not None:
                await parking.depart(self._git, self._standing_at)
        elif own:
            if state.unreadable:
                return Blocked(reasons=(Finding(code="unparkable", detail=state.unreadable),))
            origin = Origin(
                session_key=present.session_key,
                task_id=present.task_id,
                head=state.head,
                branch=state.branch,
                index=state.index_tree,
                digest=state.digest,
            )
            commit = await parking.park(self._git, state, ref, theirs, origin)
            parked = Parked(
                ref=ref,
                commit=commit,
                session_key=present.session_key,
                task_id=present.task_id,
                left_in_place=state.nested,
            )
            undo = origin
        return await self._arrive(state, parked, undo=undo)

    async def _arrive(
        self, state: Snapshot, parked: Parked | None, *, undo: Origin | None
    ) -> Prepared | Blocked:
        """Leave a trace, move the files by git's own careful checkout, put head and index where they belong."""
        previous = self._plan.previous
        move = Move(
            origin=previous.digest if previous is not None else "",
            session_key=self._plan.session_key,
            task_id=self._plan.task_id,
        )
        await parking.write_move(self._git, move)
        waiting = state.refs.get(parking.session_ref(self._name))
        origin = await parking.origin_of(self._git, waiting) if waiting else None
        if parked is not None and undo is not None and state.dirty:
            await parking.depart(self._git, parked.commit)
        try:
            await parking.travel(self._git, waiting if waiting and origin else self._upstream)
        except GitRefused as refused:
            if undo is not None and state.dirty:
                await parking.settle(self._git, undo.head, undo.branch, undo.index)
            return Blocked(reasons=(Finding(code="checkout_refused", detail=refused.said),))
        if waiting and origin:
            await parking.settle(self._git, origin.head, origin.branch, origin.index)
            head, branch = origin.head, origin.branch
        else:
            await parking.settle(self._git, self._upstream, self._name.branch)
            await self._git.git("update-ref", parking.base_ref(self._name), self._upstream)
            head, branch = self._upstream, self._name.branch
        reached = await look(self._git)
        await parking.write_move(self._git, replace(move, reached=reached.digest))
        if waiting:
            await self._git.git("update-ref", "-d", parking.session_ref(self._name), waiting)
        behind = await self._is_behind(head)
        continued = origin is not None or parking.base_ref(self._name) in state.refs
        return replace(self._ready(head, branch, continued=continued, behind=behind), parked=parked)

    def _ready(self, head: str, branch: str, *, continued: bool, behind: bool) -> Prepared:
        return Prepared(
            path=Path(),
            head=head,
            branch=branch,
            base=None,
            upstream=self._upstream,
            continued=continued,
            behind=behind,
        )
