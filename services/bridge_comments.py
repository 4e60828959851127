"""The bridge's way to comments by REST, in the run's own repository (``services.bridge_ports.Comments``)."""

from collections.abc import Awaitable
from typing import TypeVar

from domain.faults import Fault, NotFound, Unavailable
from domain.runs import Comment
from services.ports import GiteaSide

T = TypeVar("T")


class RepositoryComments:
    """Comments of one repository. A lost answer is ``Unavailable``, a refusal Gitea's own fault."""

    def __init__(self, gitea: GiteaSide, *, owner: str, name: str, repository_id: int | None) -> None:
        self._gitea = gitea
        self._owner = owner
        self._name = name
        self._repository_id = repository_id

    async def edit(self, comment_id: int, body: str) -> None:
        """Replace the body."""
        await _told_apart(
            self._gitea.edit_comment(
                self._owner, self._name, comment_id, body, repository_id=self._repository_id
            )
        )

    async def create(self, number: int, body: str) -> int:
        """Comment on an issue or pull request; the comment's id."""
        made = await _told_apart(
            self._gitea.create_comment(
                self._owner, self._name, number, body, repository_id=self._repository_id
            )
        )
        return made.id

    async def author_of(self, comment_id: int) -> int:
        """The id of the user who wrote it."""
        return (await self._read(comment_id)).author_id

    async def body_of(self, comment_id: int) -> str:
        """Its present text."""
        return (await self._read(comment_id)).body

    async def _read(self, comment_id: int) -> Comment:
        comment = await _told_apart(self._gitea.comment(self._owner, self._name, comment_id))
        if comment is None:
            raise NotFound("there is no such comment", code="comment_not_found")
        return comment


async def _told_apart(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except Fault as fault:
        if fault.params.get("outcome") == "unknown":
            raise Unavailable(fault.message, code=fault.code, params=fault.params) from None
        raise
