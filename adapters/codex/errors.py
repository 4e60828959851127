"""Codex's many error texts, mapped to few stable codes.

Nearly every JSON-RPC error of the app-server is -32600 and told apart only by its text; a failed turn carries
``codexErrorInfo``, a word or an object with one key. The texts are those recorded from 0.130 to 0.171.

Codes of a failed turn: ``model_invalid_request``, ``model_unauthorised``, ``model_rate_limited``,
``model_quota``, ``model_context_full``, ``model_unavailable``, ``model_stream_cut``, ``model_incomplete``,
``model_refused``, ``codex_misconfigured``, ``codex_turn_failed``.
"""

import re
from collections.abc import Mapping

from adapters.codex.protocol import TurnError
from adapters.jsonrpc import RemoteError
from domain.faults import Conflict, Fault, NotFound, Unavailable

OVERLOADED = -32001
THREAD_FAILED = -32603
NO_ACTIVE_TURN = "no active turn"
MESSAGE_LIMIT = 600  # characters of Codex's own text that are kept

_BY_INFO = {
    "contextWindowExceeded": "model_context_full",
    "usageLimitExceeded": "model_quota",
    "sessionBudgetExceeded": "model_quota",
    "serverOverloaded": "model_unavailable",
    "internalServerError": "model_unavailable",
    "unauthorized": "model_unauthorised",
    "badRequest": "model_invalid_request",
    "cyberPolicy": "model_refused",
    "httpConnectionFailed": "model_unavailable",
    "responseStreamConnectionFailed": "model_unavailable",
    "responseStreamDisconnected": "model_stream_cut",
    "responseTooManyFailedAttempts": "model_unavailable",
}
_BY_STATUS = {
    400: "model_invalid_request",
    401: "model_unauthorised",
    402: "model_quota",
    403: "model_unauthorised",
    404: "model_invalid_request",
    413: "model_context_full",
    422: "model_invalid_request",
    429: "model_rate_limited",
}
# Searched in order, in the texts that come with the word "other".
_BY_TEXT = (
    ("incomplete response", "model_incomplete"),
    ("missing environment variable", "codex_misconfigured"),
    ("quota", "model_quota"),
    ("context window", "model_context_full"),
    ("unauthorized", "model_unauthorised"),
    ("high demand", "model_unavailable"),
    ("connection failed", "model_unavailable"),
    ("error sending request", "model_unavailable"),
    ("failed to lookup", "model_unavailable"),
    ("stream disconnected", "model_stream_cut"),
)
RETRYABLE = frozenset(
    {"model_rate_limited", "model_unavailable", "model_stream_cut", "model_incomplete", "codex_turn_failed"}
)
_LINK = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+")
_STATUS = re.compile(r"\bstatus:?\s+(\d{3})\b")


def without_links(text: str) -> str:
    """``text``, bounded, its links replaced: the relay's address holds a capability."""
    return _LINK.sub("<url>", text)[:MESSAGE_LIMIT]


def turn_error(error: Mapping[str, object] | None) -> TurnError:
    """The error of a failed turn or of an ``error`` notification. Unknown ones are ``codex_turn_failed``."""
    if not error:
        return TurnError(code="codex_turn_failed", message="no reason was given", retryable=True)
    text = str(error.get("message") or "")
    more = str(error.get("additionalDetails") or "")
    word, status = _info(error.get("codexErrorInfo"))
    if status is None and (found := _STATUS.search(f"{text} {more}")):
        status = int(found[1])
    code = _code(word, status, f"{text} {more}".lower())
    return TurnError(
        code=code,
        message=without_links(text if not more else f"{text} ({more})"),
        retryable=code in RETRYABLE,
        http_status=status,
    )


def _info(info: object) -> tuple[str, int | None]:
    if isinstance(info, str):
        return info, None
    if isinstance(info, dict) and info:
        word, details = next(iter(info.items()))
        status = details.get("httpStatusCode") if isinstance(details, dict) else None
        return str(word), status if isinstance(status, int) else None
    return "other", None


def _code(word: str, status: int | None, text: str) -> str:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and status >= 500:
        return "model_unavailable"
    if word == "responseStreamDisconnected":
        # Also the word of every retry notice: only its details tell a cut stream from an absent model.
        return next((code for piece, code in _BY_TEXT if piece in text), "model_stream_cut")
    if word in _BY_INFO:
        return _BY_INFO[word]
    for piece, code in _BY_TEXT:
        if piece in text:
            return code
    # A 400 reaches us as the model's bare JSON body under the word "other" (recorded: err_400).
    return "model_invalid_request" if text.lstrip().startswith("{") else "codex_turn_failed"


def thread_fault(error: RemoteError, *, resume: bool) -> Fault:
    """The fault for a refused ``thread/start`` or ``thread/resume``, told apart by number and text.

    ``thread_not_found`` is the only proof that a thread is lost; everything else may pass.
    """
    text = error.text.lower()
    message = without_links(error.text)
    if error.number == OVERLOADED:
        return Unavailable(message, code="codex_overloaded")
    if "required mcp servers failed" in text:
        return Fault(message, code="mcp_start_failed")
    if "no rollout found" in text:
        return NotFound(message, code="thread_not_found")
    if "already has an active writer" in text:
        return Conflict(message, code="thread_busy")
    return Fault(message, code="thread_resume_failed" if resume else "thread_start_failed")


def turn_start_fault(error: RemoteError) -> Fault:
    """The fault for a refused ``turn/start``; no turn was started."""
    message = without_links(error.text)
    if error.number == OVERLOADED:
        return Unavailable(message, code="codex_overloaded")
    if "thread not found" in error.text.lower():
        return NotFound(message, code="thread_not_loaded")
    return Fault(message, code="turn_start_failed")


def refuses_collaboration(error: RemoteError) -> bool:
    """Whether ``turn/start`` was refused because of its collaboration mode (no turn was started)."""
    return "requires experimentalapi" in error.text.lower() or error.text.startswith("Invalid request:")
