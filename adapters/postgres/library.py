"""The ``eventsourcing`` library's recorders over our log, so that tools written for the library read and append it.

Synchronous, as the library is. Appends go through the same ``append_v1`` as ours, without premises: the library's
compare-and-swap is the unique ``(stream, version)``. A topic is our event type, a state our body; an originator id is
a stream's name. Mind that the library's default JSON transcoder must not be used on payloads that are not its own.
"""

import contextlib
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import Any, Literal, Self, cast
from uuid import UUID, uuid4

import orjson
import psycopg
from eventsourcing import persistence
from eventsourcing.persistence import Notification, StoredEvent
from psycopg import sql
from psycopg_pool import ConnectionPool

from adapters.postgres import arrays
from adapters.postgres.arrays import Array, Bytes, Integers, Longs, Moments, Texts, Truths, Uuids
from adapters.postgres.connections import Session, checked_schema, checked_url, conninfo, settings
from adapters.postgres.statements import statements

_Connection = psycopg.Connection[tuple[Any, ...]]
_LISTEN_S = 0.5


class Datastore:
    """Connections of the library's recorders, and how they name originators (``uuid`` or ``text``)."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "turnkeeper",
        originator_id_type: Literal["uuid", "text"] = "text",
        connections: int = 8,
    ) -> None:
        session = Session(
            url=checked_url(url), schema=checked_schema(schema), application_name="turnkeeper library"
        )
        with psycopg.connect(conninfo(session), autocommit=True) as connection:
            connection.execute(settings(session), prepare=False)
            row = connection.execute(statements("log.sql")["identity"]).fetchone()
        self.log_id, role, self.channel = row if row is not None else ("", None, "")
        self._session = Session(
            url=session.url, schema=schema, application_name=session.application_name, role=role
        )
        self._uuids = originator_id_type == "uuid"
        self._pool = ConnectionPool(
            conninfo(self._session),
            min_size=1,
            max_size=connections,
            kwargs={"autocommit": True},
            configure=self._configure,
            open=True,
        )

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def originator(self, stream: str) -> UUID | str:
        """The originator id of a stream."""
        return UUID(stream) if self._uuids else stream

    @contextlib.contextmanager
    def connection(self) -> Iterator[_Connection]:
        """A connection in autocommit mode. psycopg's errors become the library's."""
        try:
            with self._pool.connection() as connection:
                yield cast("_Connection", connection)
        except psycopg.Error as error:
            raise _library_error(error) from None

    def _configure(self, connection: psycopg.Connection[Any]) -> None:
        arrays.register(connection)
        connection.execute(settings(self._session), prepare=False)


class AggregateRecorder(persistence.AggregateRecorder):
    """Streams, without positions."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore = datastore

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:  # noqa: ANN401 - the library's signature
        """Append the events together, or raise ``IntegrityError`` and append none."""
        del kwargs
        self._insert(stored_events)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Events of one stream with versions above ``gt`` up to ``lte``."""
        query = statements("library.sql")["select_events_desc" if desc else "select_events"]
        params = {"stream": str(originator_id), "gt": gt, "lte": lte, "limit": limit}
        with self.datastore.connection() as connection:
            rows = connection.execute(query, params, binary=True).fetchall()
        return [
            StoredEvent(
                originator_id=self.datastore.originator(stream),
                originator_version=version,
                topic=topic,
                state=state,
            )
            for stream, version, topic, state in rows
        ]

    def _insert(self, stored_events: Sequence[StoredEvent]) -> Sequence[int]:
        if not stored_events:
            return []
        with self.datastore.connection() as connection:
            arguments = _arguments(stored_events, self.datastore.log_id)
            row = connection.execute(statements("log.sql")["append"], arguments, binary=True).fetchone()
        base: int = row[0] if row is not None else 0
        return list(range(base + 1, base + 1 + len(stored_events)))


class ApplicationRecorder(AggregateRecorder, persistence.ApplicationRecorder):
    """Streams and the whole log; notification ids are positions."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:  # noqa: ANN401 - the library's signature
        """Append the events together and return their positions, or raise ``IntegrityError`` and append none."""
        del kwargs
        return self._insert(stored_events)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """At most ``limit`` events from position ``start`` to ``stop``, of all types or of ``topics``."""
        first = 0 if start is None else start if inclusive_of_start else start + 1
        params = {"first": first, "last": stop, "types": list(topics) or None, "limit": limit}
        with self.datastore.connection() as connection:
            query = statements("library.sql")["select_notifications"]
            rows = connection.execute(query, params, binary=True).fetchall()
        return [
            Notification(
                id=position,
                originator_id=self.datastore.originator(stream),
                originator_version=version,
                topic=topic,
                state=state,
            )
            for position, stream, version, topic, state in rows
        ]

    def max_notification_id(self) -> int | None:
        """The last position, None for an empty log."""
        with self.datastore.connection() as connection:
            row = connection.execute(statements("library.sql")["max_notification_id"]).fetchone()
        return None if row is None else row[0]

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> persistence.Subscription[persistence.ApplicationRecorder]:
        """Every event after position ``gt``, for ever."""
        return cast(
            "persistence.Subscription[persistence.ApplicationRecorder]",
            _Subscription(self, gt=gt, topics=topics),
        )


class _Subscription(persistence.ListenNotifySubscription["ApplicationRecorder"]):
    """Pulls when something was announced, and twice a second in case an announcement was lost."""

    def __init__(self, recorder: "ApplicationRecorder", gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._listener = Thread(target=self._listen, name="library-subscription")
        self._listener.start()

    def __exit__(self, *args: object, **kwargs: Any) -> None:  # noqa: ANN401 - the library's signature
        try:
            super().__exit__(*args, **kwargs)
        finally:
            self._listener.join()

    def _listen(self) -> None:
        datastore = self._recorder.datastore
        try:
            with datastore.connection() as connection:
                listen = sql.SQL(statements("tail.sql")["listen"].decode())
                connection.execute(listen.format(channel=sql.Identifier(datastore.channel)), prepare=False)
                while not self._has_been_stopped and not self._thread_error:
                    for _ in connection.notifies(timeout=_LISTEN_S, stop_after=1):
                        pass
                    self._has_been_notified.set()
                connection.execute(statements("tail.sql")["unlisten"])
        except BaseException as error:  # noqa: BLE001 - the iterating thread raises it
            self._thread_error = self._thread_error or error
            self.stop()


def _arguments(events: Sequence[StoredEvent], log_id: str) -> tuple[Array, ...]:
    """The arguments of ``append_v1`` for one request without conditions."""
    request_id = uuid4()
    metadata = orjson.dumps({"actor": "library", "request_id": request_id, "logId": log_id})
    count = len(events)
    integers, longs, texts, data, truths = Integers([]), Longs([]), Texts([]), Bytes([]), Truths([])
    return (
        Uuids([request_id]), Integers([count]),
        integers, texts, longs, data,
        integers, texts, longs,
        integers, truths, texts, longs, truths, texts, texts, data, longs,
        integers, truths, texts, texts, texts, Moments([]),
        integers, texts, data, data, truths,
        Integers([1] * count), Texts([str(event.originator_id).encode() for event in events]),
        Longs([event.originator_version for event in events]), Texts([event.topic.encode() for event in events]),
        Integers([1] * count), Bytes([event.state for event in events]), Bytes([metadata] * count),
    )  # fmt: skip


def _library_error(error: psycopg.Error) -> persistence.PersistenceError:
    """The library's error of the same name, with the class of the failure and nothing of the connection."""
    for name in (
        "IntegrityError",
        "DataError",
        "OperationalError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
        "DatabaseError",
        "InterfaceError",
    ):
        if isinstance(error, getattr(psycopg, name)):
            kind: type[persistence.PersistenceError] = getattr(persistence, name)
            return kind(f"{name} {error.sqlstate or ''}".strip())
    return persistence.PersistenceError(type(error).__name__)
