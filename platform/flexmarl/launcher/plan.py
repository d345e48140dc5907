"""Which processes one machine runs, with which settings. Paths and secrets in, specs and environment out."""

import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flexmarl.launcher.children import ProcessSpec

WEB, DRIVER, WORKERS, NODE = range(4)
"""Stop stages, in order; the services follow. Their times add up to less than `up` promises."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asked of `up`."""

    root: Path
    """Folder of manage.py."""
    home: Path
    host: str
    port: int
    node: str
    demo: str = ""
    """Template of the demo run; empty: none is started."""
    services_only: bool = False
    """Start PostgreSQL and Valkey alone, for a restore."""


def url_of(host: str, port: int) -> str:
    """Return the address a browser on this machine opens."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def process_specs(options: Options, port: int) -> list[ProcessSpec]:
    """Return the platform's processes in starting order."""
    manage = (sys.executable, str(options.root / "manage.py"))
    module = (sys.executable, "-m")
    serve = (*manage, "serve", "--host", options.host, "--port", str(port))
    return [
        ProcessSpec("web", serve, WEB, 1.5, beats=True),
        ProcessSpec("driver", (*manage, "drive"), DRIVER, 1.5, beats=True),
        ProcessSpec("simulations", (*manage, "simulations"), DRIVER, 1.5, beats=True),
        ProcessSpec("node", (*module, "workers.node"), NODE, 1.0, beats=True),
        ProcessSpec("device-worker", (*module, "workers.run", "--role", "device"), WORKERS, 1.5, beats=True),
        ProcessSpec("rollout-worker", (*module, "workers.run", "--role", "rollout"), WORKERS, 1.5, beats=True),
    ]


def allowed_hosts(host: str) -> list[str]:
    """Return the names under which the pages may be asked for: this machine's, when others can reach it."""
    names = ["localhost", "127.0.0.1", "[::1]"]
    if host in {"127.0.0.1", "::1", "localhost"}:
        return names
    mine = socket.gethostname()
    addresses = [a.address for entries in psutil.net_if_addrs().values() for a in entries if a.family == socket.AF_INET]
    return list(dict.fromkeys([*names, mine, socket.getfqdn(), *addresses]))


def environment_of(
    options: Options, inherited: Mapping[str, str], secrets: Mapping[str, str], database_url: str, redis_url: str
) -> dict[str, str]:
    """Return the environment of every process; what the person set wins over what we would choose."""
    ours = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(options.home),
        # One process of each kind runs here, so that a new one may take over at once what the one before held. Commands
        # that join the installation from outside do not get it.
        "FLEXMARL_PLACE": f"{options.node}@{options.home}",
    }
    chosen = {
        "FLEXMARL_ALLOWED_HOSTS": ",".join(allowed_hosts(options.host)),
        "FLEXMARL_NODE": options.node,
        "FLEXMARL_CONTROL_URL": url_of(options.host, options.port),
        "FLEXMARL_CLUSTER_KEY": secrets["cluster_key"],
        "FLEXMARL_SECRET_KEY": secrets["secret_key"],
        "FLEXMARL_LOG_JSON": "1",
        "FLEXMARL_LOG_DIR": str(options.home / "logs"),
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
        "PYTHONUNBUFFERED": "1",
        # One thread per process: two tiny models on two cores lose more to contention than they gain.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    path = [str(options.root), str(options.root / "platform"), *filter(None, [inherited.get("PYTHONPATH", "")])]
    return {**chosen, **inherited, **ours, "PYTHONPATH": ":".join(path)}


PUBLISHED = (
    "DATABASE_URL",
    "REDIS_URL",
    "FLEXMARL_HOME",
    "FLEXMARL_NODE",
    "FLEXMARL_CLUSTER_KEY",
    "FLEXMARL_SECRET_KEY",
)
"""What another command on this machine needs to join the running installation."""
