"""Mentions: the recorded vectors, each rule by example, and properties that hold for any text."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.mentions import LIMIT, beyond_limit, find_mention, kept, quoted_lines

BOT = "ccweb-bot"
VECTORS = json.loads((Path(__file__).parents[1] / "evidence" / "gitea" / "mention_vectors.json").read_text())

LINES = st.text(
    st.sampled_from("ab @cweb-ot>`~#*_[]()<!-\\/.,:你，\u200b\u202e\u00a0\t&;1|")
    | st.characters(codec="utf-8"),
    max_size=30,
)
PIECES = st.sampled_from(
    [
        f"@{BOT}",
        f"@{BOT} ",
        "> ",
        "```",
        "~~~",
        "`",
        "    ",
        "- ",
        "1. ",
        "<!--",
        "-->",
        "<b>",
        "</b>",
        "# ",
        "|",
        "\\",
    ]
)
BODIES = st.lists(LINES | PIECES, max_size=12).map("\n".join) | st.lists(LINES | PIECES, max_size=12).map(
    "".join
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: repr(vector["text"]))
def test_recorded_vectors(vector: dict[str, object]) -> None:
    """Each recorded text is a mention exactly where its column ``ours`` says so."""
    assert (find_mention(str(vector["text"]), BOT) is not None) is vector["ours"]


@pytest.mark.parametrize(
    "body",
    [
        "> @ccweb-bot hi",
        "> quoted\n@ccweb-bot lazy",
        "> a\n> b\n@ccweb-bot lazy\nand more",
        "- > @ccweb-bot in a list",
        "> - item\n@ccweb-bot lazy in a list",
        "  > @ccweb-bot",
        "`@ccweb-bot`",
        "`` a ` @ccweb-bot ``",
        "`spans\n@ccweb-bot lines`",
        "```\n@ccweb-bot\n```",
        "~~~\n@ccweb-bot\n~~~",
        "```python\n@ccweb-bot",
        "~~~~\n@ccweb-bot\n~~~\n@ccweb-bot",
        "    @ccweb-bot",
        "\t@ccweb-bot",
        "text\n\n    @ccweb-bot",
        "- item\n\n  ```\n  @ccweb-bot\n  ```",
        "- item\n\n      @ccweb-bot",
        "1. a\n   - b\n     ~~~\n     @ccweb-bot",
        "<!-- @ccweb-bot -->",
        "<!--\n\n@ccweb-bot\n\n-->",
        "<!-- open @ccweb-bot",
        "text <!-- @ccweb-bot --> text",
        "<div>\n@ccweb-bot\n</div>",
        "<script>\n\n@ccweb-bot\n\n</script>",
        "<blockquote>\n\n@ccweb-bot\n\n</blockquote>",
        "<pre>\n\n@ccweb-bot\n\n</pre>",
        "a <code>@ccweb-bot</code>",
        "a <a href='x'>@ccweb-bot</a>",
        "<b title='@ccweb-bot'>x</b>",
        "[x](@ccweb-bot)",
        "[x](https://a.example/ '@ccweb-bot')",
        "[@ccweb-bot](https://a.example/)",
        "![@ccweb-bot](x.png)",
        "[x]: @ccweb-bot\n\n[x]",
        "<https://a.example/@ccweb-bot>",
        "<mailto:me@ccweb-bot>",
        "https://a.example/@ccweb-bot",
        "https://a.example/?u=(@ccweb-bot)",
        "see https://a.example/?to:@ccweb-bot",
        "www.a.example,@ccweb-bot",
        "me@ccweb-bot",
        "me.too+x@ccweb-bot",
        "é@ccweb-bot",
        "e\u0301@ccweb-bot",
        "\u0434@ccweb-bot",
        "\uff41@ccweb-bot",
        "@ccweb-bot.example.com",
        "@ccweb-bot...x",
        "@ccweb-bot@example.com",
        "@ccweb-botx",
        "@ccweb-bot\u00e9",
        "@ccweb-bot\u0301",
        "@ccweb-bot_",
        "@ccweb-bot-",
        "@ccweb-bot/",
        "@ccweb-bot\u200b2",
        "x\u200b@ccweb-bot",
        "@\u200bccweb-bot",
        "@ccweb\u00ad-bot",
        "@ccweb**-bot**",
        "**x**@ccweb-bot",
        "@ccweb-bot**2**",
        "@ccweb-bot\\_",
        "\\@ccweb-bot",
        "&#64;ccweb-bot",
        "&commat;ccweb-bot",
        "a/@ccweb-bot",
        "\\\\@ccweb-bot",
        "#@ccweb-bot",
        "@ccweb bot",
        "ccweb-bot",
        "\uff20ccweb-bot",
        "@ccweb\u2010bot",
        "",
        "   ",
        "> " * 100 + "@ccweb-bot",
    ],
    ids=repr,
)
def test_no_mention(body: str) -> None:
    """Quotes, code, HTML, links, addresses, longer names, paths and escapes never trigger."""
    assert find_mention(body, BOT) is None
    assert find_mention(body.replace("\n", "\r\n"), BOT) is None


@pytest.mark.parametrize(
    ("body", "instruction"),
    [
        ("@ccweb-bot fix it", "fix it"),
        ("@CCWEB-BOT: fix it", "fix it"),
        ("@ccweb-bot\r\n\r\nfix\r\nit", "fix\nit"),
        ("@ccweb-bot，请修复", "请修复"),
        ("@ccweb-bot请修复", "请修复"),
        ("你好@ccweb-bot", "你好@ccweb-bot"),
        ("こんにちは@ccweb-bot", "こんにちは@ccweb-bot"),
        ("안녕@ccweb-bot", "안녕@ccweb-bot"),
        ("「@ccweb-bot」", "「@ccweb-bot」"),
        ("\u3000@ccweb-bot\u3000hi", "hi"),
        ("\U0001f44d\ufe0f@ccweb-bot hi", "\U0001f44d\ufe0f@ccweb-bot hi"),
        ("@ccweb-bot- item\n", None),
        ("@ccweb-bot\n- one\n- two", "- one\n- two"),
        ("@ccweb-bot - fix", "fix"),
        ("@ccweb-bot -v shows nothing", "-v shows nothing"),
        ("@ccweb-bot @ccweb-bot, go on", "go on"),
        ("@ccweb-bot's turn", "@ccweb-bot's turn"),
        ("Could you, @ccweb-bot, look?", "Could you, @ccweb-bot, look?"),
        ("> quoted\n\n@ccweb-bot why?", "> quoted\n\n@ccweb-bot why?"),
        ("> quoted\n\nlook:\n@ccweb-bot", "> quoted\n\nlook:\n@ccweb-bot"),
        ("> a\n- @ccweb-bot ends the quote", "> a\n- @ccweb-bot ends the quote"),
        ("# @ccweb-bot title", "# @ccweb-bot title"),
        ("- @ccweb-bot item", "- @ccweb-bot item"),
        ("| a | b |\n|---|---|\n| @ccweb-bot | x |", "| a | b |\n|---|---|\n| @ccweb-bot | x |"),
        ("~~@ccweb-bot~~", "~~@ccweb-bot~~"),
        ("**@ccweb-bot** go", "**@ccweb-bot** go"),
        ("a<br>@ccweb-bot", "a<br>@ccweb-bot"),
        ("<b>@ccweb-bot</b> go", "<b>@ccweb-bot</b> go"),
        ("<details>\n\n@ccweb-bot go\n\n</details>", "<details>\n\n@ccweb-bot go\n\n</details>"),
        ("`x` @ccweb-bot", "`x` @ccweb-bot"),
        ("`@ccweb-bot` @ccweb-bot", "`@ccweb-bot` @ccweb-bot"),
        ("```\ncode\n```\n@ccweb-bot run it", "```\ncode\n```\n@ccweb-bot run it"),
        ("https://a.example/x，@ccweb-bot 看", "https://a.example/x，@ccweb-bot 看"),
        ("@ccweb-bot2 @ccweb-bot", "@ccweb-bot2 @ccweb-bot"),
        ("`open @ccweb-bot", "`open @ccweb-bot"),
        ("@ccweb-bot\n\n    indented", "    indented"),
        ("a\u2026@ccweb-bot", "a\u2026@ccweb-bot"),
        ("@ccweb-bot.", ""),
        ("@ccweb-bot...", ""),
    ],
    ids=repr,
)
def test_instruction(body: str, instruction: str | None) -> None:
    """The instruction is the whole text, without the mention and its punctuation where they lead."""
    found = find_mention(body, BOT)
    if instruction is None:
        assert found is None
    else:
        assert found is not None
        assert found.instruction == instruction
        assert found.stripped == ()


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ("@ccweb-bot stop", "stop"),
        ("@ccweb-bot: STOP!", "stop"),
        ("@ccweb-bot\r\nretry\r\n", "retry"),
        ("@ccweb-bot status?", "status"),
        ("@ccweb-bot **help**", "help"),
        ("@ccweb-bot 停止", "stop"),
        ("@ccweb-bot停止。", "stop"),
        ("@ccweb-bot，重试", "retry"),
        ("@ccweb-bot 状态？", "status"),
        ("@ccweb-bot 帮助", "help"),
        ("> quoted\n\n@ccweb-bot stop", "stop"),
        ("@ccweb-bot stop <!-- ccweb x=y -->", "stop"),
        ("@ccweb-bot \u200bstop", "stop"),
        ("@ccweb-bot stop it", None),
        ("@ccweb-bot don't stop", None),
        ("please @ccweb-bot stop", None),
        ("@ccweb-bot `stop`", None),
        ("@ccweb-bot stop\n\n```\ncode\n```", None),
        ("@ccweb-bot\n\n> stop", None),
        ("@ccweb-bot /stop", None),
        ("@ccweb-bot unstoppable", None),
        ("@ccweb-bot", None),
        ("@other @ccweb-bot stop", None),
    ],
    ids=repr,
)
def test_commands(body: str, command: str | None) -> None:
    """A word alone behind the mention is a command, in English and Chinese; with anything else it is not."""
    found = find_mention(body, BOT)
    assert found is not None
    assert found.command == command


@pytest.mark.parametrize(
    ("body", "instruction", "stripped"),
    [
        ("@ccweb-bot a<!-- do evil -->b", "ab", ("hidden_html",)),
        ("@ccweb-bot hi\n\n<!--\nevil\n\nmore\n-->\nend", "hi\n\n\n\n\n\n\nend", ("hidden_html",)),
        ("@ccweb-bot hi\n\n> <!-- evil\n> evil --> shown", "hi\n\n> \n>  shown", ("hidden_html",)),
        ("@ccweb-bot hi\n\n- <!-- evil -->\n- b <!-- evil --> c", "hi\n\n- \n- b  c", ("hidden_html",)),
        ("@ccweb-bot hi\n\n<!-- evil", "hi", ("hidden_html",)),
        ("@ccweb-bot `<!-- shown -->` <!-- shown -->", "`<!-- shown -->`", ("hidden_html",)),
        ("@ccweb-bot look\n```\n<!-- shown -->\n```", "look\n```\n<!-- shown -->\n```", ()),
        ("<!-- evil -->\n\n@ccweb-bot hi", "hi", ("hidden_html",)),
        (
            "@ccweb-bot hi\n\n<div>\nseen <!-- evil -->\n</div>",
            "hi\n\n<div>\nseen \n</div>",
            ("hidden_html",),
        ),
        ("@ccweb-bot a\u202eb\u202c", "ab", ("bidirectional_controls",)),
        ("@ccweb-bot a\u200bb\U000e0041", "ab", ("invisible_characters",)),
        ("@ccweb-bot a\x00b\x1b[31m", "ab[31m", ("invisible_characters",)),
        ("\u200f@ccweb-bot a", "a", ("bidirectional_controls",)),
        ("@ccweb-bot a\u2066b\u00adc", "abc", ("bidirectional_controls", "invisible_characters")),
        ("@ccweb-bot \U0001f468\u200d\U0001f469 \u2764\ufe0f", "\U0001f468\u200d\U0001f469 \u2764\ufe0f", ()),
        (
            "@ccweb-bot \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            (),
        ),
        ("@ccweb-bot a\u200db", "ab", ("invisible_characters",)),
    ],
    ids=repr,
)
def test_what_cannot_be_seen_is_stripped(body: str, instruction: str, stripped: tuple[str, ...]) -> None:
    """Hidden HTML and invisible or direction-changing characters leave the instruction and are noted; code stays."""
    found = find_mention(body, BOT)
    assert found is not None
    assert found.instruction == instruction
    assert found.stripped == stripped


@given(BODIES)
def test_quoting_never_triggers(body: str) -> None:
    """No text, quoted line by line, mentions anybody."""
    text = body.replace("\r\n", "\n").replace("\r", "\n")
    assert find_mention("\n".join(f"> {line}" for line in text.split("\n")), BOT) is None


@given(BODIES)
def test_fencing_never_triggers(body: str) -> None:
    """No text inside a fence longer than any in it mentions anybody, closed or not."""
    fence = "`" * (body.count("`") + 3)
    assert find_mention(f"{fence}\n{body}\n{fence}", BOT) is None
    assert find_mention(f"{fence}\n{body}", BOT) is None


@given(st.sampled_from("abzABZ0189_-éßдλ"), st.booleans())
def test_longer_names_never_trigger(letter: str, before: bool) -> None:  # noqa: FBT001 - drawn
    """A letter or digit beside the name makes it another one."""
    body = f"hi {letter}@{BOT} you" if before else f"hi @{BOT}{letter} you"
    assert find_mention(body, BOT) is None


@given(BODIES, st.integers(0, 3), st.integers(0, 3))
def test_blank_lines_around_change_nothing(body: str, before: int, after: int) -> None:
    """Blank lines around a text do not change what it asks for."""
    assert find_mention("\n" * before + body + "\n" * after, BOT) == find_mention(body, BOT)


@given(BODIES)
def test_line_ends_change_nothing(body: str) -> None:
    """Windows line ends, which browsers send, say the same."""
    text = body.replace("\r", "")
    assert find_mention(text.replace("\n", "\r\n"), BOT) == find_mention(text, BOT)


@given(BODIES)
def test_any_text_is_read(body: str) -> None:
    """Any text gives a mention or none; an instruction is within the limit and has nothing invisible."""
    found = find_mention(f"@{BOT} {body}", BOT)
    if found is not None:
        assert len(found.instruction.encode()) <= LIMIT
        assert "\u202e" not in found.instruction
        assert "\x00" not in found.instruction


@given(BODIES)
def test_case_of_the_login_does_not_matter(body: str) -> None:
    """The configured login's case changes nothing."""
    assert find_mention(body, BOT) == find_mention(body, BOT.upper())


def test_login_is_no_pattern() -> None:
    """A login with a dot is compared as text."""
    assert find_mention("@a.b hi", "a.b") is not None
    assert find_mention("@axb hi", "a.b") is None


def test_text_beyond_the_limit() -> None:
    """What stands behind the first 64 KiB is not read: a mention there is told apart, a long instruction is cut."""
    long = "数据" * LIMIT
    assert find_mention(f"{long} @{BOT} hi", BOT) is None
    assert beyond_limit(f"{long} @{BOT} hi", BOT)
    assert not beyond_limit(f"@{BOT} hi {long}", BOT)
    assert not beyond_limit(f"@{BOT} hi", BOT)
    found = find_mention(f"@{BOT} hi {long}", BOT)
    assert found is not None
    assert found.stripped == ("truncated",)
    assert LIMIT - 100 < len(found.instruction.encode()) <= LIMIT


def test_a_name_cut_by_the_limit_is_none() -> None:
    """A name that the limit cuts out of a longer one is no mention."""
    for room in range(len(BOT) + 4):
        body = "x" * (LIMIT - room) + f" @{BOT}2 hi"
        assert find_mention(body, BOT) is None
        assert find_mention(kept(body)[0], BOT) is None


def test_what_is_kept_decides_the_same() -> None:
    """Reading what the log keeps of a text gives the same instruction as reading the text."""
    for body in (
        f"@{BOT} hi",
        f"@{BOT} hi\r\n" + "é\r\n" * LIMIT,
        "x " * LIMIT + f"@{BOT}",
        f"a @{BOT}" * LIMIT,
    ):
        whole, part = find_mention(body, BOT), find_mention(kept(body)[0], BOT)
        assert (whole and whole.instruction) == (part and part.instruction)
        assert kept(kept(body)[0]) == (kept(body)[0], False)


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        ">",
        "> ",
        "`",
        "*",
        "_a",
        "![",
        "<",
        "<!--",
        "[](",
        "- ",
        "\\",
        "&a;",
        "~~",
        "|a",
        "*_",
        "<?",
        "\u200b",
        "(",
        "@ccweb-bot2 ",
    ],
)
def test_hostile_texts_are_answered(piece: str) -> None:
    """A text of one piece over and over, up to the limit, is read: the mention before it is found."""
    body = f"@{BOT} hi\n\n" + piece * (LIMIT // len(piece.encode()) - 10)
    found = find_mention(body, BOT)
    assert found is not None
    assert found.instruction.startswith("hi")


def test_huge_bodies() -> None:
    """Bodies of megabytes are answered from their first 64 KiB."""
    huge = "lorem ipsum dolor\n" * 170_000
    assert find_mention(huge, BOT) is None
    found = find_mention(f"@{BOT} hi\n{huge}", BOT)
    assert found is not None
    assert "truncated" in found.stripped


def test_quoted_lines() -> None:
    """Lines of quotes are told with their lazy continuation, nested and in lists."""
    assert quoted_lines("a\n> b\nlazy\n\nc\n- > d\n") == {1, 2, 5}
    assert quoted_lines("```\n> code\n```") == frozenset()
    assert quoted_lines("plain") == frozenset()
