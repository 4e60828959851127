r"""What a comment asks for: whether it mentions the bot, and the instruction or the word in it.

Markdown is parsed by markdown-it-py (CommonMark with tables and strikethrough), so that quotes with their lazy
continuation, code of every kind, HTML and link targets are told apart as Gitea shows them, not by patterns.

What counts (workflow, What triggers; facts, Mentions): the bot's name behind ``@`` in the shown text of the comment
itself. Never: block quotes, code spans and blocks, HTML blocks and comments, link texts and targets, e-mail
addresses, longer names, teams and paths (``@bot/x``), escaped signs (``\@bot``, ``&#64;bot``), a name broken by an
invisible character. Names are compared without regard to ASCII case.

Bounds: only the first ``LIMIT`` bytes (UTF-8) are looked at, which is exactly what the log keeps of a comment, so
that a decision can be taken again from the log; a mention that first appears after them is no mention (see
``beyond_limit``). Blocks nested deeper than ``NESTING`` are not looked into: what stands in them is no mention.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, html_inline
from markdown_it.token import Token

from domain.texts import bounded, cut_spans, hidden_spans, source_spans, visible

Command = Literal["stop", "retry", "status", "help"]

LIMIT = 64 * 1024
"""How much of a text is read and kept, in bytes of UTF-8 (architecture, Texts can be erased)."""

NESTING = 20
"""How deep blocks may be nested: markdown-it's own bound for CommonMark."""

WORDS: dict[str, Command] = {
    "stop": "stop",
    "retry": "retry",
    "status": "status",
    "help": "help",
    "停止": "stop",
    "重试": "retry",
    "状态": "status",
    "帮助": "help",
}

_OPAQUE = "\ufffc"  # stands in the shown text for what is no text: code, images, links, an escaped sign
_SEAM = "\u2060"  # stands where markup begins or ends: no name runs across it, and neighbours look past it
_NOT_SPOKEN = frozenset({"code", "pre", "kbd", "samp", "a", "script", "style", "template", "blockquote", "q"})
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]*)")
_BEFORE = frozenset("_-+%@/\\#&=~$")
_AFTER = frozenset("_-@/")
_BROKEN_NAME = re.compile(r"@[^\s@]{0,100}\Z")
_UNSPACED = ("THAI", "LAO", "KHMER", "MYANMAR")
_URL_BACKWARDS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%|-]*")
_URL_REACH = 2048
_LEAD_END = re.compile(r"[^\S\n]*(?:[,:;，：；、。.!！?？—–…]+|-(?=\s))?(?:[^\S\n]*\n)*")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")
_WORD_END = " \t\n\u00a0\u3000.!?。！？…,，"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mention:
    """A comment that names the bot.

    ``instruction`` is the whole text, lines ended by line feeds alone, without the mention where that leads;
    ``command`` the word that stands alone behind the mention, None for a task; ``stripped`` what was taken out, of
    ``bidirectional_controls``, ``invisible_characters``, ``hidden_html``, ``truncated``.
    """

    instruction: str
    command: Command | None = None
    stripped: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shown:
    """The shown text of one paragraph, heading or cell, and the line of the source where it begins."""

    text: str
    line: int


def _located_html(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - markdown-it's signature
    start = state.pos
    found = html_inline(state, silent)
    if found and not silent:
        state.tokens[-1].meta = {"at": start}
    return found


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": NESTING}).enable(["table", "strikethrough"])
    parser.disable("text_join")  # keeps escaped signs apart from written ones
    parser.inline.ruler.at("html_inline", _located_html)
    return parser


_PARSER = _parser()


def kept(body: str) -> tuple[str, bool]:
    """What is kept and read of a text: its first ``LIMIT`` bytes, without a name that the cut broke off.

    Reading what is kept gives what reading the whole gives, except for the note ``truncated``.
    """
    text, cut = bounded(body, LIMIT)
    return (_BROKEN_NAME.sub("", text), True) if cut else (text, False)


def find_mention(body: str, login: str) -> Mention | None:
    """Read ``body`` as a comment to the bot ``login``; None if it does not name the bot."""
    pattern = _name(login)
    if pattern.search(body) is None:
        return None
    bare, cut = kept(body)
    text = _lines(bare)
    tokens = _PARSER.parse(text)
    shown = list(_shown(tokens))
    first = next(((part, at) for part in shown if (at := _named(part.text, pattern)) is not None), None)
    if first is None:
        return None
    part, at = first
    without = cut_spans(text, _hidden(text, tokens))
    instruction, dropped = visible(without)
    stripped = [*dropped]
    if without != text:
        stripped.append("hidden_html")
    if cut:
        stripped.append("truncated")
    if part is shown[0] and not visible(part.text[:at])[0].strip():
        instruction = _without_lead(instruction, pattern)
    return Mention(
        instruction=_trimmed(instruction),
        command=_command(shown, pattern),
        stripped=tuple(stripped),
    )


def beyond_limit(body: str, login: str) -> bool:
    """Whether the name stands behind what is looked at: then a person may be told to write a shorter comment."""
    text, cut = kept(body)
    return cut and _name(login).search(body, len(text)) is not None


def quoted_lines(body: str) -> frozenset[int]:
    """The lines (from 0) that belong to block quotes, lazy continuation included."""
    if ">" not in body:
        return frozenset()
    tokens = _PARSER.parse(body)
    spans = (token.map for token in tokens if token.type == "blockquote_open" and token.map)
    return frozenset(line for begin, end in spans for line in range(begin, end))


def _lines(body: str) -> str:
    return body.replace("\r\n", "\n").replace("\r", "\n")


def _name(login: str) -> re.Pattern[str]:
    return re.compile("@" + re.escape(login), re.IGNORECASE | re.ASCII)


def _shown(tokens: list[Token]) -> Iterator[_Shown]:
    """The parts that the author says: neither quoted, nor code, nor HTML. Code blocks leave an opaque sign."""
    quoted = 0
    silent: list[str] = []
    for token in tokens:
        if token.type == "blockquote_open":
            quoted += 1
        elif token.type == "blockquote_close":
            quoted -= 1
        elif token.type == "html_block":
            _follow(silent, token.content)
        elif not quoted and not silent:
            line = token.map[0] if token.map else 0
            if token.type == "inline":
                yield _Shown(text=_flat(token.children or []), line=line)
            elif token.type in {"fence", "code_block"}:
                yield _Shown(text=_OPAQUE, line=line)


def _follow(silent: list[str], html: str) -> None:
    """Keep the stack of open HTML elements whose content is not the author's own plain word."""
    for closing, name in _TAG.findall(cut_spans(html, hidden_spans(html))):
        tag = name.lower()
        if tag not in _NOT_SPOKEN:
            continue
        if not closing:
            silent.append(tag)
        elif tag in silent:
            del silent[len(silent) - 1 - silent[::-1].index(tag) :]


def _flat(children: list[Token]) -> str:
    """The shown text of inline tokens; what is no plain text is one opaque sign."""
    out: list[str] = []
    silent: list[str] = []
    links = 0
    for token in children:
        if token.type == "link_open":
            links += 1
            out.append(_OPAQUE)
        elif token.type == "link_close":
            links -= 1
        elif token.type == "html_inline":
            was = bool(silent)
            _follow(silent, token.content)
            if was or silent:
                out.append(_OPAQUE)
            else:
                out.append(_inline_html(token.content))
        elif links or silent:
            continue
        elif token.type == "text":
            out.append(token.content)
        elif token.type == "text_special":
            out.append(_OPAQUE if token.content == "@" else token.content)
        elif token.type in {"softbreak", "hardbreak"}:
            out.append("\n")
        elif token.type in {"code_inline", "image"}:
            out.append(_OPAQUE)
        else:
            out.append(_SEAM)
    return "".join(out)


def _inline_html(html: str) -> str:
    tag = _TAG.match(html)
    if tag is None:
        return _SEAM
    return {"br": "\n", "hr": "\n", "img": _OPAQUE}.get(tag[2].lower(), _SEAM)


def _named(text: str, pattern: re.Pattern[str], start: int = 0) -> int | None:
    """Where ``text`` first names the bot with nothing beside the name that makes it something else."""
    for found in pattern.finditer(text, start):
        if _free_before(text, found.start()) and _free_after(text, found.end()):
            return found.start()
    return None


def _unseen(char: str) -> bool:
    return unicodedata.category(char) in {"Cf", "Mn", "Me"}


def _letter(char: str) -> bool:
    """A letter or digit of a script that parts words by spaces: it would make the name a longer one."""
    if not char.isalnum():
        return False
    plain = unicodedata.normalize("NFKC", char)
    if plain.isascii():
        return True
    if unicodedata.east_asian_width(char) in {"W", "F", "H"}:
        return False
    return not unicodedata.name(char, "").startswith(_UNSPACED)


def _free_before(text: str, at: int) -> bool:
    index = at - 1
    while index >= 0 and _unseen(text[index]):
        index -= 1
    if index < 0:
        return True
    char = text[index]
    if char in _BEFORE or _letter(char):
        return False
    behind = _URL_BACKWARDS.match(text[max(0, index + 1 - _URL_REACH) : index + 1][::-1])
    run = behind[0][::-1].lower() if behind else ""
    return "://" not in run and not run.startswith(("www.", "mailto:"))


def _free_after(text: str, at: int) -> bool:
    index = at
    while index < len(text) and unicodedata.category(text[index]) == "Cf":
        index += 1
    dots = index
    while dots < len(text) and text[dots] == ".":
        dots += 1
    if dots > index:
        return dots == len(text) or not (_letter(text[dots]) or text[dots] in _AFTER)
    if index == len(text):
        return True
    char = text[index]
    if unicodedata.category(char) in {"Mn", "Me"}:
        return "\ufe00" <= char <= "\ufe0f"
    return char not in _AFTER and not _letter(char)


def _without_lead(text: str, pattern: re.Pattern[str]) -> str:
    """``text`` without the mentions that it begins with, and without the signs that part them from the rest."""
    rest = text.lstrip()
    while (found := pattern.match(rest)) and _free_after(rest, found.end()):
        after = rest[found.end() :]
        if after[:2].lower() in {"'s", "’s"}:
            return text.lstrip()
        rest = _LEAD_END.sub("", after, count=1)
        begin = rest.lstrip()
        rest = begin if pattern.match(begin) else rest
    return rest


def _trimmed(text: str) -> str:
    """Without blank lines around; the first line keeps an indent that makes it code."""
    text = _BLANK_LINES.sub("", text, count=1) if _BLANK_LINES.match(text) else text
    return text.rstrip() if text.startswith(("    ", "\t")) else text.strip()


def _command(shown: list[_Shown], pattern: re.Pattern[str]) -> Command | None:
    """The word, if mention and word are all that is said outside quotes."""
    said = visible("\n".join(part.text for part in shown))[0].strip()
    if not pattern.match(said):
        return None
    return WORDS.get(_without_lead(said, pattern).strip(_WORD_END).lower())


def _hidden(text: str, tokens: list[Token]) -> list[tuple[int, int]]:
    """Where in ``text`` HTML stands that nobody sees: comments, declarations, scripts, styles."""
    if "<" not in text:
        return []
    lines = text.split("\n")
    spans: list[tuple[int, int]] = []
    for token in tokens:
        if token.map is None:
            continue
        if token.type == "html_block":
            spans += source_spans(lines, token.map[0], token.content, hidden_spans(token.content))
        elif token.type == "inline":
            inside = [
                (child.meta["at"], child.meta["at"] + len(child.content))
                for child in token.children or []
                if child.type == "html_inline" and hidden_spans(child.content)
            ]
            spans += source_spans(lines, token.map[0], token.content, inside)
    return spans
