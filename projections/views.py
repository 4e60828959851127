"""All read models."""

from projections.audit import Audit
from projections.comments import Comments
from projections.deliveries import Deliveries
from projections.intents import Intents
from projections.overview import Overview
from projections.repositories import Repositories
from projections.sessions import Sessions
from projections.tasks import Tasks
from projections.turns import Turns
from projections.view import View

VIEWS: tuple[View, ...] = (
    Repositories(),
    Sessions(),
    Tasks(),
    Turns(),
    Comments(),
    Deliveries(),
    Intents(),
    Audit(),
    Overview(),
)
