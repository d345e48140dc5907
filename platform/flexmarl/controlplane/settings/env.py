"""Typed readers of the process environment. No other module of the control plane reads it.

Every reader names the variable in its error, so that a wrong value is found without a stack trace.
"""

import os
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from flexmarl.contracts.hub_models import check_hub
from flexmarl.store import database_address
from flexmarl.store.data.model_roots import read_roots

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def text(name: str, default: str = "") -> str:
    """Read a variable as text."""
    return os.environ.get(name, default).strip()


def given(names: tuple[str, ...], beginnings: tuple[str, ...] = ()) -> dict[str, str]:
    """Return those of some variables that are set, and all that begin in a certain way."""
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(beginnings)}


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
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number; use one from {minimum}") from None
    if number < minimum:
        raise ImproperlyConfigured(f"{name}={number} is below {minimum}; use a whole number from {minimum}")
    return number


def choice(name: str, default: str, legal: tuple[str, ...]) -> str:
    """Read one of several words, in capitals."""
    value = text(name, default).upper() or default
    if value not in legal:
        raise ImproperlyConfigured(f"{name}={value!r} is not known; use one of {', '.join(legal)}")
    return value


def broker(name: str) -> str:
    """Read the address of a Redis server; empty for none."""
    value = text(name)
    example = "redis://:password@host:6379/0"
    try:
        url = urlsplit(value)
        legal = not value or (url.scheme in {"redis", "rediss", "unix"} and url.port != 0)
    except ValueError:  # a port that is no number, or a bracket that is not closed
        legal = False
    if not legal:
        raise ImproperlyConfigured(f"{name} is not a legal address; it must look like {example}")
    return value


def words(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """Read a comma-separated list."""
    value = text(name)
    return [word.strip() for word in value.split(",") if word.strip()] if value else list(default)


def networks(name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read a comma-separated list of addresses and address ranges."""
    try:
        return tuple(ip_network(word) for word in words(name))
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}; use addresses and ranges such as 10.0.0.5,10.1.0.0/16") from None


def folder(name: str, default: Path) -> Path:
    """Read a folder; a relative one is taken from the working directory."""
    value = text(name)
    return Path(value).expanduser().resolve() if value else default


def model_roots(name: str) -> tuple[str, ...]:
    """Read the folders below which models may be named; none by default."""
    try:
        return read_roots(text(name))
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None


def hub(name: str) -> str:
    """Read the address of the hub of models; empty for none."""
    try:
        return check_hub(text(name))
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None


def database(name: str, default: str) -> dict[str, Any]:
    """Turn a `postgresql://user:password@host:port/name?option=value` URL into Django's connection settings."""
    try:
        found = database_address.read(name, text(name) or default)
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None
    return {
        "ENGINE": "flexmarl.controlplane.common.postgres",
        "NAME": found.pop("dbname", "flexmarl"),
        "USER": found.pop("user", ""),
        "PASSWORD": found.pop("password", ""),
        "HOST": found.pop("host", ""),
        "PORT": found.pop("port", ""),
        "OPTIONS": dict(found),
    }
