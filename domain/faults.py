"""The one root error and its leaves.

Fault
├── Invalid            400  a request or a value that cannot be understood
├── Unauthorised       401  no or a wrong credential
├── Forbidden          403  known, but not allowed
├── NotFound           404
├── Conflict           409  the state does not allow it
│   ├── VersionConflict      a premise of an append no longer holds
│   ├── LeaseHeld            somebody else has the lease
│   ├── LeaseStale           wrong epoch or token: another holder came after
│   └── LeaseExpired         the right token, but too late
├── TooLarge           413
├── UnsupportedType    415
└── Unavailable        503  the database, or the outside, does not answer

Codes are lower snake case and stable; messages tell what to do. No fault carries a secret, a body or an
internal address. Everything that is not a Fault is answered as 500 ``internal_error``.
"""

from collections.abc import Mapping


class Fault(Exception):
    """An expected failure: ``code`` for programs, ``message`` for people, ``params`` for both."""

    status = 500
    code = "internal_error"

    def __init__(
        self, message: str, *, code: str | None = None, params: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.params = dict(params or {})

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Invalid(Fault):
    """A request or value that cannot be understood."""

    status = 400
    code = "invalid_request"


class Unauthorised(Fault):
    """No credential, or a wrong one."""

    status = 401
    code = "unauthorised"


class Forbidden(Fault):
    """The caller is known, but may not do this."""

    status = 403
    code = "forbidden"


class NotFound(Fault):
    """There is no such thing."""

    status = 404
    code = "not_found"


class Conflict(Fault):
    """The present state does not allow it."""

    status = 409
    code = "conflict"


class VersionConflict(Conflict):
    """A premise of an append no longer holds: read again and decide again."""

    code = "version_conflict"


class LeaseHeld(Conflict):
    """Somebody else holds the lease."""

    code = "lease_held"


class LeaseStale(Conflict):
    """Wrong epoch or token: another holder came after. Nothing was changed."""

    code = "lease_stale"


class LeaseExpired(Conflict):
    """The right epoch and token, but too late. Nothing was changed."""

    code = "lease_expired"


class TooLarge(Fault):
    """More bytes than the limit allows."""

    status = 413
    code = "too_large"


class UnsupportedType(Fault):
    """A content type that this route does not take."""

    status = 415
    code = "unsupported_media_type"


class Unavailable(Fault):
    """The database, or the outside, does not answer now: try again later."""

    status = 503
    code = "unavailable"
