"""The settings of provided hosts, in a file that only this account reads, on the folder that all hosts share.

Invariant: no secret of the installation is in a job's script, command line or environment; they are in this file of
mode 600 alone. A host with a node token gets none of them, only what is no secret, in its environment.
"""

import json
import sys
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings

from flexmarl.contracts.providers import GrowingProvider
from flexmarl.contracts.uploaded_models import SETTING as CONTROL_URL
from flexmarl.controlplane.inventory.joining import joining, only_here
from flexmarl.controlplane.inventory.providers.base import HostRequest, ProviderRefused
from flexmarl.controlplane.inventory.providers.host_folders import log_of
from flexmarl.host.files import write_durably
from flexmarl.store.database_address import authority

FILE = "host-settings.json"
TOKEN = "FLEXMARL_NODE_TOKEN"
"""Variable in which a host has its token."""
TOKEN_SHOWN = "fmn_..."
"""Stands for it in what people read."""
ADDRESS = (
    f"Set {CONTROL_URL} to an address of the web service that other hosts can use, such as "
    "https://flexmarl.example.org, for the web process and manage.py provide."
)
_SECRETS = ("FLEXMARL_EXTERNAL_SECRET_", "FLEXMARL_EXCHANGE_", "FLEXMARL_OBJECT_STORE")
"""Beginnings of settings that are secrets, or are of no use without one."""
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
    return {
        **settings.HOST_SETTINGS,
        "DATABASE_URL": _database_url(),
        "REDIS_URL": settings.BROKER_URL,
        "FLEXMARL_CLUSTER_KEY": settings.CLUSTER_KEY,
        "FLEXMARL_HOME": str(settings.HOME),
    }


def own_variables(request: HostRequest) -> dict[str, str]:
    """Return the settings that a host with a node token has in its environment; none where it reads the file."""
    if not request.has_token:
        return {}
    return {name: value for name, value in settings.HOST_SETTINGS.items() if not name.startswith(_SECRETS)}


def prepare(request: HostRequest) -> None:
    """Write down what a host reads from the folder that it shares, and make the folder of its log, if it shares one.

    Raises ProviderRefused where it shares none and the address of the web service is not known.
    """
    if not request.has_token:
        write_settings()
        log_of(request.node, "").parent.mkdir(parents=True, exist_ok=True)
    elif not settings.HOST_SETTINGS.get(CONTROL_URL):
        raise ProviderRefused(f"{CONTROL_URL} is not set in the process that asks for hosts", ADDRESS)


def notices_of(request: HostRequest) -> list[str]:
    """Say which servers the hosts that are asked for cannot use."""
    if not request.has_token:
        missing = [f"{setting}: {words}" for setting, words in joining().missing]
    else:
        host = urlsplit(settings.HOST_SETTINGS.get(CONTROL_URL, "")).hostname or ""
        where = f"means this host alone ({host})" if host else "is not set"
        missing = [f"{CONTROL_URL}: it {where}. {ADDRESS}"] if only_here(host) else []
    return [f"Hosts of the cluster cannot use this installation yet. {text}" for text in missing]


def command_of(request: HostRequest, options: GrowingProvider) -> list[str]:
    """Return the arguments of `workers.allocated` that all providers give."""
    home = ["--home", options.home] if options.home else []
    way = home if request.has_token else ["--settings", str(settings_file())]
    what = ["--node", request.node, "--pool", request.pool, "--kind", options.kind]
    counts = ["--devices", str(options.devices), "--rollout-workers", str(options.rollout_workers)]
    return [*way, "--job", str(request.id), *what, *counts]


def checkout_of(options: GrowingProvider) -> str:
    """Return the folder of the checkout on the hosts."""
    return options.checkout or str(settings.ROOT)


def python_of(options: GrowingProvider) -> str:
    """Return the interpreter on the hosts."""
    return options.python or sys.executable


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
