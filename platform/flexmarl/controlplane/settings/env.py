"""Typed readers of the process environment. No other module of the control plane reads it.

Every reader names the variable in its error, so that a wrong value is found without a stack trace.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def text(name: str, default: str = "") -> str:
    """Read a variable as text."""
    return os.environ.get(name, default).strip()


def flag(name: str, default: bool = False) -> bool:
    """Read a yes/no variable."""
    value = os.environ.get(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name}={value!r} is not a yes/no value; use 1 or 0")


def integer(name: str, default: int, minimum: int = 0) -> int:
    """Read a whole number that is at least `minimum`."""
    value = text(name)
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number") from None
    if number < minimum:
        raise ImproperlyConfigured(f"{name}={number} is below {minimum}")
    return number


def words(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """Read a comma-separated list."""
    value = text(name)
    return [word.strip() for word in value.split(",") if word.strip()] if value else list(default)


def folder(name: str, default: Path) -> Path:
    """Read a folder; a relative one is taken from the working directory."""
    value = text(name)
    return Path(value).expanduser().resolve() if value else default


def database(name: str, default: str) -> dict[str, Any]:
    """Turn a `postgresql://user:password@host:port/name?option=value` URL into Django's connection settings."""
    url = urlsplit(text(name) or default)
    if url.scheme not in {"postgresql", "postgres"}:
        raise ImproperlyConfigured(f"{name} must be a postgresql:// URL, not {url.scheme or 'empty'}://")
    options: dict[str, Any] = dict(parse_qsl(url.query))
    host = options.pop("host", "") or unquote(url.hostname or "")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path.lstrip("/")) or "flexmarl",
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": host,
        "PORT": str(url.port or ""),
        "OPTIONS": options,
    }
