"""The library's own recorder test cases, on our log through the synchronous adapter."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from eventsourcing.persistence import StoredEvent
from eventsourcing.tests import persistence as library

from adapters.postgres.library import AggregateRecorder, ApplicationRecorder, Datastore
from adapters.postgres.log import PostgresLog
from domain.log import AppendRequest, Draft, Premise
from tests.conformance.conftest import ConformanceHappened
from tests.conftest import Schema


class OnOurLog:
    """What the library's cases need of us: a recorder in a fresh schema."""

    schema: Schema

    @pytest.fixture(autouse=True)
    def _fresh(self, schema: Schema) -> None:
        self.schema = schema

    def datastore(self, kind: str = "uuid") -> Datastore:
        """Connections that are closed when the test ends."""
        datastore = Datastore(
            self.schema.url,
            schema=self.schema.schema,
            originator_id_type=kind,  # type: ignore[arg-type]
        )
        self.addCleanup(datastore.close)  # type: ignore[attr-defined]
        return datastore


class TestAggregateRecorder(OnOurLog, library.AggregateRecorderTestCase):
    """Streams of UUIDs."""

    def create_recorder(self) -> AggregateRecorder:
        """Ours."""
        return AggregateRecorder(self.datastore())


class TestApplicationRecorder(OnOurLog, library.ApplicationRecorderTestCase[Any]):
    """The whole log, and the subscription that the library leaves optional."""

    def create_recorder(self) -> ApplicationRecorder:
        """Ours."""
        return ApplicationRecorder(self.datastore())

    def test_insert_subscribe(self) -> None:
        """Subscriptions start anywhere, go on for ever and stop when told."""
        self.optional_test_insert_subscribe()


class TestTextIds(OnOurLog, library.AggregateRecorderTestCase):
    """Streams with readable names."""

    def new_originator_id(self) -> UUID | str:
        """A name."""
        return f"task:{uuid4()}"

    def create_recorder(self) -> AggregateRecorder:
        """Ours."""
        return AggregateRecorder(self.datastore("text"))


class TestNotificationIds(OnOurLog, library.NonInterleavingNotificationIDsBaseCase):
    """Positions of one append are never mixed with those of another."""

    def create_recorder(self) -> ApplicationRecorder:
        """Ours."""
        return ApplicationRecorder(self.datastore())


async def test_the_library_and_we_read_each_other(schema: Schema) -> None:
    """What one side appends the other one reads, in one order and under one compare-and-swap."""
    log = await PostgresLog.open(schema.url, schema=schema.schema)
    event = ConformanceHappened(n=1)
    await log.append(
        AppendRequest(
            request_id=uuid4(), premises=(Premise("s", 0),), drafts=(Draft(stream="s", event=event),)
        )
    )
    with Datastore(schema.url, schema=schema.schema) as datastore:
        recorder = ApplicationRecorder(datastore)
        theirs = StoredEvent(
            originator_id="s", originator_version=2, topic="ConformanceHappened", state=b'{"n":2}'
        )
        assert recorder.insert_events([theirs]) == [2]
        seen: Sequence[StoredEvent] = recorder.select_events("s")
        assert [(e.originator_version, e.topic, e.state) for e in seen] == [
            (1, "ConformanceHappened", b'{"n":1}'),
            (2, "ConformanceHappened", b'{"n":2}'),
        ]
    assert [recorded.event for recorded in await log.read_stream("s")] == [event, ConformanceHappened(n=2)]
    await log.close()
