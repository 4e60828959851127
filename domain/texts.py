"""Texts of strangers: bounded, without what cannot be seen, and where hidden HTML stands in them."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

Span = tuple[int, int]

_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
_JOINERS = frozenset("\u200c\u200d")
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180e\u3164\uffa0")
_KEPT_CONTROLS = frozenset("\n\t")
_OPENERS = re.compile(r"<!--|<\?|<!\[CDATA\[|<![A-Za-z]|<(script|style|template)(?=[\s/>])", re.IGNORECASE)


def bounded(text: str, limit: int) -> tuple[str, bool]:
    """The first ``limit`` bytes of ``text`` in UTF-8, never half a character, and whether something was cut."""
    if len(text) * 4 <= limit:
        return text, False
    head = text[:limit].encode("utf-8", "surrogatepass")
    if len(head) <= limit and len(text) <= limit:
        return text, False
    return head[:limit].decode("utf-8", "ignore"), True


def visible(text: str) -> tuple[str, tuple[str, ...]]:
    """``text`` without invisible and direction-changing characters, and which sorts of them there were.

    Sorts: ``bidirectional_controls``, ``invisible_characters``. Joiners and emoji selectors stay between signs
    outside ASCII, where scripts and emoji need them; other control characters than tab and line feed go.
    """
    if text.isascii() and text.isprintable():
        return text, ()
    out: list[str] = []
    sorts: set[str] = set()
    for index, char in enumerate(text):
        sort = _sort(text, index, char)
        if sort is None:
            out.append(char)
        else:
            sorts.add(sort)
    return "".join(out), tuple(sorted(sorts))


def _sort(text: str, index: int, char: str) -> str | None:
    if " " <= char <= "~" or char in _KEPT_CONTROLS:
        return None
    if char in _BIDI:
        return "bidirectional_controls"
    category = unicodedata.category(char)
    if char in _JOINERS:
        beside = text[index - 1 : index] + text[index + 1 : index + 2]
        needed = len(beside) == 2 and all(not sign.isascii() for sign in beside)
        return (
            None
            if needed and not any(unicodedata.category(sign) == "Cf" for sign in beside)
            else "invisible_characters"
        )
    if "\ufe00" <= char <= "\ufe0f":
        before = text[index - 1 : index]
        needed = (
            bool(before)
            and (not before.isascii() or before in "0123456789#*")
            and not "\ufe00" <= before <= "\ufe0f"
        )
        return None if needed else "invisible_characters"
    if category in {"Cf", "Cc", "Cs"} or char in _BLANKS or "\U000e0100" <= char <= "\U000e01ef":
        return "invisible_characters"
    return None


def hidden_spans(html: str) -> list[Span]:
    """Where in ``html`` stands what is never shown: comments, declarations, scripts, styles, templates.

    What is not closed is hidden to the end.
    """
    spans: list[Span] = []
    at = 0
    while (found := _OPENERS.search(html, at)) is not None:
        at = _closed(html, found)
        spans.append((found.start(), at))
    return spans


def _closed(html: str, opener: re.Match[str]) -> int:
    sign = opener[0].lower()
    if sign == "<!--":
        if html.startswith(">", opener.end()):
            return opener.end() + 1
        if html.startswith("->", opener.end()):
            return opener.end() + 2
        closer = "-->"
    elif opener[1]:
        closing = re.compile(rf"</{opener[1]}[^>]*>", re.IGNORECASE).search(html, opener.end())
        return closing.end() if closing else len(html)
    else:
        closer = {"<?": "?>", "<![cdata[": "]]>"}.get(sign, ">")
    end = html.find(closer, opener.end())
    return len(html) if end < 0 else end + len(closer)


def source_spans(lines: Sequence[str], first: int, content: str, spans: Iterable[Span]) -> list[Span]:
    """Spans of a block's ``content`` as spans of the source, one per line.

    The content is the source from line ``first`` on without what leads a line (quote signs, indents), so each of its
    lines is a part of the source's line. A line that cannot be found (tabs that became spaces) is searched for the
    span's own text; nothing found, nothing given.
    """
    wanted = list(spans)
    if not wanted:
        return []
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    out: list[Span] = []
    begin = 0
    for number, line in enumerate(content.split("\n"), first):
        end = begin + len(line)
        if number < len(lines):
            for start, stop in wanted:
                low, high = max(start, begin), min(stop, end)
                if low < high:
                    out += _on_line(lines[number], offsets[number], line, low - begin, high - begin)
        begin = end + 1
    return out


def _on_line(source: str, offset: int, line: str, low: int, high: int) -> list[Span]:
    base = source.find(line)
    if base >= 0:
        return [(offset + base + low, offset + base + high)]
    piece = source.find(line[low:high])
    return [(offset + piece, offset + piece + high - low)] if piece >= 0 else []


def cut_spans(text: str, spans: Iterable[Span]) -> str:
    """``text`` without the spans; they may overlap."""
    out: list[str] = []
    at = 0
    for begin, end in sorted(spans):
        if begin > at:
            out.append(text[at:begin])
        at = max(at, end)
    out.append(text[at:])
    return "".join(out)
