import pytest

from domain.policy import (
    GITEA_ACTIONS_ID,
    Listed,
    Right,
    Rules,
    TriggerPolicy,
    matches,
    may_trigger,
    native,
    serves,
    taken_over,
)
from domain.webhooks import Permissions, Person

READER = Permissions(admin=False, push=False, pull=True)
WRITER = Permissions(admin=False, push=True, pull=True)
ADMIN = Permissions(admin=True, push=True, pull=True)
RULES = Rules(bot_login="bot", gitea_urls=(), repositories=())


@pytest.mark.parametrize(
    ("policy", "permissions", "expected"),
    [
        ("write", READER, "denied"),
        ("write", WRITER, "granted"),
        ("write", ADMIN, "granted"),
        ("write", None, "unknown"),
        ("admin", WRITER, "denied"),
        ("admin", ADMIN, "granted"),
        ("admin", None, "unknown"),
        ("anyone", READER, "granted"),
        ("anyone", None, "granted"),
        ("allow-list", ADMIN, "denied"),
        ("allow-list", None, "denied"),
    ],
)
def test_who_may_trigger(policy: TriggerPolicy, permissions: Permissions | None, expected: Right) -> None:
    """Each policy asks for its own right, and a right that nobody stated is unknown, not denied."""
    assert may_trigger(policy, permissions, user_id=3) == expected


@pytest.mark.parametrize("policy", ["write", "admin", "anyone", "allow-list"])
def test_ghosts_never_may(policy: TriggerPolicy) -> None:
    """Accounts that nobody owns are denied under every policy."""
    assert may_trigger(policy, ADMIN, user_id=-1, listed=True) == "denied"
    assert may_trigger(policy, ADMIN, user_id=0, listed=True) == "denied"


def test_the_allow_list_takes_logins_and_ids() -> None:
    """An entry with an id needs both to match; a login alone is compared without regard to case."""
    rules = Rules(
        bot_login="bot",
        gitea_urls=(),
        repositories=(),
        allow=(Listed.parse("@Alice"), Listed.parse("bob:7")),
    )
    assert "allowed" in matches(rules, Person(id=1, login="alice"))
    assert "allowed" in matches(rules, Person(id=7, login="Bob"))
    assert "allowed" not in matches(rules, Person(id=8, login="bob"))
    assert "allowed" not in matches(rules, Person(id=7, login="robert"))
    assert may_trigger("allow-list", None, user_id=7, listed=True) == "granted"


def test_a_login_that_was_taken_over_is_noticed() -> None:
    """A listed login that now has another id is told apart from a stranger's."""
    rules = Rules(bot_login="bot", gitea_urls=(), repositories=(), allow=(Listed(login="bob", id=7),))
    assert taken_over(rules, Person(id=8, login="bob"))
    assert not taken_over(rules, Person(id=7, login="bob"))
    assert not taken_over(rules, Person(id=8, login="carol"))


@pytest.mark.parametrize("text", ["", ":7", "bob:x", "bob:", "bob:-1"])
def test_odd_entries_are_refused(text: str) -> None:
    """An entry that is neither a login nor a login with an id is a mistake to be told."""
    with pytest.raises(ValueError, match="login"):
        Listed.parse(text)


def test_the_bot_is_known_by_id_once_it_has_one() -> None:
    """With an id the login decides nothing: a person may have taken the old name."""
    by_login = matches(RULES, Person(id=5, login="Bot"))
    known = Rules(bot_login="bot", bot_id=6, gitea_urls=(), repositories=())
    assert "bot" in by_login
    assert "bot" not in matches(known, Person(id=5, login="bot"))
    assert "bot" in matches(known, Person(id=6, login="renamed"))


def test_gitea_actions_is_a_bot() -> None:
    """Gitea's own workflow account counts as another bot without being listed."""
    assert "other_bot" in matches(RULES, Person(id=GITEA_ACTIONS_ID, login="gitea-actions"))
    assert matches(RULES, None) == frozenset()


@pytest.mark.parametrize(
    ("pattern", "served"),
    [
        ("*", True),
        ("*/*", True),
        ("acme/*", True),
        ("Acme/Widget", True),
        ("acme/wid*", True),
        ("acme", False),
        ("acme/widge", False),
        ("ac*", False),
        ("other/*", False),
        ("", False),
    ],
)
def test_which_repositories_are_served(pattern: str, *, served: bool) -> None:
    """Patterns name owner and repository apart, and cases are not told apart."""
    assert serves((pattern,), "acme", "widget") is served


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("https://git.example.com/acme/widget.git", True),
        ("https://GIT.example.com:443/acme/widget.git", True),
        ("http://gitea:3000/git/acme/widget.git", True),
        ("http://gitea:3000/acme/widget.git", False),
        ("http://gitea:3000/gitty/acme/widget.git", False),
        ("http://gitea:3001/git/acme/widget.git", False),
        ("http://git.example.com/acme/widget.git", False),
        ("https://git.example.com.evil.example/acme/widget.git", False),
        ("https://git.example.com@evil.example/acme/widget.git", False),
        ("https://user:secret@git.example.com/acme/widget.git", False),
        ("https://git.example.com/acme/../widget.git", False),
        ("https://git.example.com", False),
        ("https://git.example.com:port/acme/widget.git", False),
        ("ssh://git@git.example.com/acme/widget.git", False),
        ("", False),
    ],
)
def test_which_clone_urls_are_ours(url: str, *, ours: bool) -> None:
    """A clone address must lie under one of our Gitea's addresses, whole path segments and all."""
    assert native(("https://git.example.com", "http://gitea:3000/git/"), url) is ours
