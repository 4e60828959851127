"""Arrays in PostgreSQL's binary format, written in one go.

psycopg dumps a list element by element; a batch of 32 requests is some two thousand elements, which would cost more
than the server needs for them. Format: dimensions, has-null flag, element oid, length, lower bound, then each element
as a 32-bit length (-1 for null) and its bytes (PostgreSQL source, ``array_send``).
"""

import datetime as dt
import struct
import uuid
from collections.abc import Sequence
from typing import Any

from psycopg.abc import AdaptContext
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)
_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Array:
    """One parameter: an array that is already in the wire's format. ``oid`` is that of the array type."""

    oid = 0
    element_oid = 0
    __slots__ = ("data",)

    def __init__(self, parts: bytes, count: int, *, has_null: bool = False) -> None:
        if count:
            self.data = _HEAD.pack(1, has_null, self.element_oid, count, 1) + parts
        else:
            self.data = struct.pack("!iiI", 0, 0, self.element_oid)


class Bytes(Array):
    """``bytea[]``; None is null."""

    oid, element_oid = 1001, 17
    __slots__ = ()

    def __init__(self, values: Sequence[bytes | None]) -> None:
        pack = _LENGTH.pack
        parts = [_NULL if value is None else pack(len(value)) + value for value in values]
        super().__init__(b"".join(parts), len(values), has_null=None in values)


class Texts(Bytes):
    """``text[]`` of UTF-8 bytes (the caller made sure that there is no NUL); None is null."""

    oid, element_oid = 1009, 25
    __slots__ = ()


class Integers(Array):
    """``int4[]``."""

    oid, element_oid = 1007, 23
    __slots__ = ()

    def __init__(self, values: Sequence[int]) -> None:
        count = len(values)
        flat = [4] * (2 * count)
        flat[1::2] = values
        super().__init__(struct.pack(f"!{2 * count}i", *flat), count)


class Longs(Array):
    """``int8[]``."""

    oid, element_oid = 1016, 20
    __slots__ = ()

    def __init__(self, values: Sequence[int]) -> None:
        flat: list[int] = [8] * (2 * len(values))
        flat[1::2] = values
        super().__init__(struct.pack("!" + "iq" * len(values), *flat), len(values))


class Truths(Array):
    """``bool[]``."""

    oid, element_oid = 1000, 16
    __slots__ = ()

    def __init__(self, values: Sequence[bool]) -> None:
        yes, no = _LENGTH.pack(1) + b"\1", _LENGTH.pack(1) + b"\0"
        super().__init__(b"".join([yes if value else no for value in values]), len(values))


class Uuids(Array):
    """``uuid[]``."""

    oid, element_oid = 2951, 2950
    __slots__ = ()

    def __init__(self, values: Sequence[uuid.UUID]) -> None:
        length = _LENGTH.pack(16)
        super().__init__(b"".join([length + value.bytes for value in values]), len(values))


class Moments(Array):
    """``timestamptz[]`` of aware datetimes; None is null."""

    oid, element_oid = 1185, 1184
    __slots__ = ()

    def __init__(self, values: Sequence[dt.datetime | None]) -> None:
        parts = [
            _NULL if value is None else struct.pack("!iq", 8, (value - _EPOCH) // _MICROSECOND)
            for value in values
        ]
        super().__init__(b"".join(parts), len(values), has_null=None in values)


def _dumper(kind: type[Array]) -> type[Dumper]:
    class ArrayDumper(Dumper):
        format = Format.BINARY
        oid = kind.oid

        def dump(self, obj: Any) -> Buffer | None:  # noqa: ANN401 - as psycopg declares it
            data: bytes = obj.data
            return data

    return ArrayDumper


_DUMPERS = {kind: _dumper(kind) for kind in (Bytes, Texts, Integers, Longs, Truths, Uuids, Moments)}


def register(context: AdaptContext) -> None:
    """Let a connection take these arrays as parameters."""
    for kind, dumper in _DUMPERS.items():
        context.adapters.register_dumper(kind, dumper)
