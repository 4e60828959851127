"""Erasable texts: the event holds a reference, the content table holds text and salt (architecture, The log)."""

import hmac
from typing import Any

from domain.log import Content


def content(ident: str, text: str, salt: bytes) -> tuple[Content, dict[str, Any]]:
    """A text to store, and the reference ``{content, digest, length}`` that an event keeps of it.

    ``digest`` is ``hmac-sha256:…`` of the text's UTF-8 under ``salt``, ``length`` its characters.
    """
    reference = {"content": ident, "digest": digest(text, salt), "length": len(text)}
    return Content(id=ident, text=text, salt=salt), reference


def digest(text: str, salt: bytes) -> str:
    """``hmac-sha256:…`` of ``text`` under ``salt``."""
    return "hmac-sha256:" + hmac.digest(salt, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def login(user_id: int, name: str) -> Content:
    """The present login of a user id: looked up, never part of an event."""
    return Content(id=login_id(user_id), text=name, salt=b"", replace=True)


def login_id(user_id: int) -> str:
    """Content id of a user's login."""
    return f"login:default:{user_id}"
