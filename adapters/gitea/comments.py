"""Comments of one repository, as the bridge asks for them (``services.bridge_ports.Comments``)."""

from adapters.gitea.rest import GiteaRest
from domain.faults import NotFound
from domain.runs import Comment


class RepositoryComments:
    """Bound to a repository's id, so that a rename between two calls loses no write.

    ``NotFound``: there is no such comment or issue. ``Unavailable``: no answer, a write may have happened. Other
    faults: Gitea refused, nothing happened.
    """

    def __init__(self, rest: GiteaRest, *, repository_id: int, owner: str, name: str) -> None:
        self._rest = rest
        self._id = repository_id
        self._owner = owner
        self._name = name

    async def edit(self, comment_id: int, body: str) -> None:
        """Replace the body."""
        await self._rest.edit_comment(self._owner, self._name, comment_id, body, repository_id=self._id)

    async def create(self, number: int, body: str) -> int:
        """Comment on an issue or pull request, and return the comment's id."""
        made = await self._rest.create_comment(self._owner, self._name, number, body, repository_id=self._id)
        return made.id

    async def author_of(self, comment_id: int) -> int:
        """Return the id of the user who wrote it."""
        return (await self._comment(comment_id)).author_id

    async def body_of(self, comment_id: int) -> str:
        """Return its present text."""
        return (await self._comment(comment_id)).body

    async def _comment(self, comment_id: int) -> Comment:
        found = await self._rest.comment(self._owner, self._name, comment_id)
        if found is None:
            raise NotFound("there is no such comment", code="comment_not_found")
        return found
