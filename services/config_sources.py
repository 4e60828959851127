"""Where settings come from: the environment, secret files and a TOML file, gathered with their origins."""

import contextvars
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from services.config_values import configuration_invalid

PREFIX = "TURNKEEPER_"

_ENVIRON: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("environ", default=None)


def gather(fields: Mapping[str, FieldInfo]) -> dict[str, tuple[Any, str]]:
    """Values and their origins by field name. Raises ``configuration_invalid`` for what cannot be read."""
    environ = _environ()
    found: dict[str, tuple[Any, str]] = {
        name: (value, "file " + environ["TURNKEEPER_CONFIG"])
        for name, value in _toml(environ, fields).items()
    }
    for name, field in fields.items():
        keys = [variable(name)] if name != "database_url" else ["TURNKEEPER_DATABASE_URL", "DATABASE_URL"]
        key = next((key for key in keys if environ.get(key)), None)
        file_key = next((f"{key}_FILE" for key in keys if environ.get(f"{key}_FILE")), None)
        if not flagged(field, "secret"):
            file_key = None
        if key and file_key:
            raise configuration_invalid(name, f"{key} and {file_key} are both set: give only one of them")
        if key:
            found[name] = (environ[key], "environment")
        elif file_key:
            found[name] = (_secret_file(name, file_key, environ[file_key]), f"environment {file_key}")
    return found


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return "DATABASE_URL" if name == "database_url" else PREFIX + name.upper()


def _environ() -> Mapping[str, str]:
    given = _ENVIRON.get()
    return os.environ if given is None else given


@contextmanager
def environment(environ: Mapping[str, str] | None) -> Iterator[None]:
    """Read from ``environ`` within this block, None for the process's own."""
    token = _ENVIRON.set(environ)
    try:
        yield
    finally:
        _ENVIRON.reset(token)


def flagged(field: FieldInfo, name: str) -> bool:
    """Whether a setting is marked as ``secret`` or ``local``."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(name))


def _secret_file(name: str, key: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise configuration_invalid(name, f"the file that {key} names cannot be read") from None
    if not text:
        raise configuration_invalid(name, f"the file that {key} names is empty")
    return text


def _toml(environ: Mapping[str, str], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    path = environ.get("TURNKEEPER_CONFIG")
    if not path:
        return {}
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError:
        raise configuration_invalid(
            "config", "the file that TURNKEEPER_CONFIG names cannot be read"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise configuration_invalid("config", "the file that TURNKEEPER_CONFIG names is no TOML") from None
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise configuration_invalid("config", f"the configuration file has the unknown setting {unknown[0]}")
    return values
