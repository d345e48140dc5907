"""The settings of provided hosts, in a file that only this account reads, on the folder that all hosts share.

Invariant: no secret is in a job's script, command line or environment; they are in this file of mode 600 alone.
"""

import json
from pathlib import Path
from urllib.parse import quote, urlencode

from django.conf import settings

from flexmarl.controlplane.inventory.joining import joining
from flexmarl.host.files import write_durably
from flexmarl.store.database_address import authority

FILE = "host-settings.json"
_KEPT = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs"})
"""Options of the address that hold for other hosts, too."""


def settings_file() -> Path:
    """Return where the file is."""
    return Path(settings.HOME) / FILE


def write_settings() -> Path:
    """Write the file where it is missing or says something else, and return where it is."""
    path, text = settings_file(), json.dumps(host_settings(), indent=1, sort_keys=True)
    if not path.exists() or path.stat().st_mode & 0o077 or path.read_text() != text:
        write_durably(path, [text.encode()], mode=0o600)
    return path


def host_settings() -> dict[str, str]:
    """Return what a host must know of this installation."""
    root = str(settings.ROOT)
    return {
        **settings.HOST_SETTINGS,
        "DATABASE_URL": _database_url(),
        "REDIS_URL": settings.BROKER_URL,
        "FLEXMARL_CLUSTER_KEY": settings.CLUSTER_KEY,
        "FLEXMARL_HOME": str(settings.HOME),
        "PYTHONPATH": f"{root}:{root}/platform",
    }


def unreachable() -> list[str]:
    """Say which servers other hosts cannot use."""
    return [f"{setting}: {words}" for setting, words in joining().missing]


def _database_url() -> str:
    """Return the database's address as workers read it."""
    database = settings.DATABASES["default"]
    host = str(database.get("HOST") or "")
    plain = {name: str(value) for name, value in database["OPTIONS"].items() if isinstance(value, str | int)}
    kept = {name: value for name, value in plain.items() if name in _KEPT}
    if host.startswith("/"):
        kept, host = {**kept, "host": host}, ""
    secret = f"{quote(database['USER'], '')}:{quote(database['PASSWORD'], '')}@" if database["USER"] else ""
    servers = authority(host, str(database["PORT"]))
    return f"postgresql://{secret}{servers}/{quote(database['NAME'], '')}" + (f"?{urlencode(kept)}" if kept else "")
