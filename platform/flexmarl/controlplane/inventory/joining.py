"""What another host needs to join: addresses of the servers as it would use them, or which setting is missing."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings

from flexmarl.host.addresses import is_own_host
from flexmarl.store.database_address import authority, bracketed

DATABASE_PORT, BROKER_PORT = 5432, 6379
WANTED = "target_session_attrs"
"""Option of an address with several servers: which of them is meant."""


class Joining(NamedTuple):
    """Addresses without their secrets; "" where only this host reaches the server, with the reason in `missing`."""

    database: str
    broker: str
    missing: list[tuple[str, str]]
    """(setting, what is wrong and what to do)."""


def joining() -> Joining:
    """Say how another host reaches this installation's servers."""
    return joining_with(settings.DATABASES["default"], settings.BROKER_URL)


def joining_with(database: Mapping[str, Any], broker_url: str) -> Joining:
    """Say it for a database in Django's words and the address of a broker."""
    host, broker = str(database.get("HOST") or ""), urlsplit(broker_url)
    missing = []
    if any(map(only_here, host.split(","))):
        missing.append(("DATABASE_URL", _words("database", host, "PostgreSQL")))
    if only_here(broker.hostname or ""):
        missing.append(("REDIS_URL", _words("broker", broker.hostname or "", "Redis or Valkey")))
    user, name = database.get("USER") or "USER", database.get("NAME") or "flexmarl"
    servers = authority(host, str(database.get("PORT") or ""), str(DATABASE_PORT))
    wanted = database.get("OPTIONS", {}).get(WANTED, "")
    shown = f"postgresql://{user}:PASSWORD@{servers}/{name}" + (f"?{WANTED}={wanted}" if wanted else "")
    number = (broker.path or "").strip("/") or "0"
    asked = f"{broker.scheme}://:PASSWORD@{bracketed(broker.hostname or '')}:{broker.port or BROKER_PORT}/{number}"
    known = {setting for setting, _ in missing}
    return Joining("" if "DATABASE_URL" in known else shown, "" if "REDIS_URL" in known else asked, missing)


def only_here(host: str) -> bool:
    """Say whether an address means the host that uses it: a socket's folder, a loopback address or name, or none."""
    return not host or host.startswith("/") or is_own_host(host)


def _words(server: str, host: str, kind: str) -> str:
    where = f"at {host}" if host and not host.startswith("/") else "through a socket of this host"
    return (
        f"The {server} is reached {where}, which other hosts cannot use. Start this installation with the address of a "
        f"{kind} server that they can reach."
    )
