"""How settings are read from text, shown as JSON, and complained about in one sentence."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field, SecretStr, ValidationError

from domain.faults import Fault

MASK = "********"


class ConfigurationInvalid(Fault):
    """A setting is missing, unreadable or contradicts another; ``params.name`` is the setting."""

    status = 500
    code = "configuration_invalid"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing to mend: the setting, and a sentence for people."""

    name: str
    sentence: str

    def fault(self) -> Fault:
        """The same as a ``configuration_invalid``."""
        return configuration_invalid(self.name, self.sentence)


def configuration_invalid(name: str, sentence: str) -> Fault:
    """A fault for the setting ``name``."""
    return ConfigurationInvalid(sentence, params={"name": name})


def first_problem(error: ValidationError, variable: Callable[[str], str]) -> Problem:
    """The first complaint of pydantic, without the value that it complains about."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    reason = first["msg"].removeprefix("Value error, ")
    if not name:
        return Problem(name=reason.split(" ", 1)[0], sentence=reason)
    if first["type"] == "extra_forbidden":
        return Problem(name=name, sentence=f"there is no setting {name}")
    return Problem(name=name, sentence=f"{variable(name)} cannot be used: {reason[:1].lower()}{reason[1:]}")


def split_words(value: object) -> Any:  # noqa: ANN401 - what it cannot split is left to the type's own check
    """``"a, b"`` as ``("a", "b")``; anything else as it is."""
    if isinstance(value, str):
        return tuple(part for part in (part.strip() for part in value.split(",")) if part)
    return value


def split_numbers(value: object) -> Any:  # noqa: ANN401 - the same
    """``"0, 2, 10"`` as three texts, which the type reads as numbers."""
    return split_words(value)


def unslashed(value: object) -> object:
    """An address without its last slash; it must be http or https and carry no credentials."""
    if not isinstance(value, str) or not value:
        return value or None
    if not value.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    if "@" in value.split("//", 1)[1].split("/", 1)[0]:
        raise ValueError("it must not contain credentials")
    return value.rstrip("/")


def decode_table(value: object) -> object:
    """A JSON object in text as a dictionary; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise ValueError("it must be a JSON object") from None


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """A setting as a JSON value; a secret is masked."""
    match value:
        case SecretStr():
            return MASK if value.get_secret_value() else None
        case Path():
            return str(value)
        case tuple() | list():
            return [plain(item) for item in value]
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case _:
            return value


Seconds = Annotated[float, Field(gt=0)]
Words = Annotated[tuple[str, ...], BeforeValidator(split_words)]
