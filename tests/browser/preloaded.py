"""What the processes of these tests have imported before they are forked: the whole control plane and the pages.

An import takes seconds of a processor, and every module of tests has a web process of its own. `begin` gives a fork
the settings of its own environment; no connection, cache or thread is there yet.
"""

import importlib
import os

SETTINGS = "flexmarl.controlplane.settings"
os.environ["DJANGO_SETTINGS_MODULE"] = f"{SETTINGS}.development"

import django  # noqa: E402

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402
from django.core.cache import caches  # noqa: E402
from django.db import connections  # noqa: E402
from django.utils.functional import empty  # noqa: E402

for _name in (
    settings.ROOT_URLCONF, "channels.routing", "flexmarl.controlplane.accounts.sockets",
    "flexmarl.controlplane.common.admission", "flexmarl.controlplane.inventory.door_server",
    "flexmarl.controlplane.routing", "flexmarl.controlplane.telemetry.health.probes", "tests.browser.changes",
    "tests.browser.seed", "uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto",
):  # fmt: skip
    importlib.import_module(_name)


def begin() -> None:
    """Read the settings anew, as this process's environment has them."""
    for name in ("base", "development"):
        importlib.reload(importlib.import_module(f"{SETTINGS}.{name}"))
    settings._wrapped = empty  # read at the next use
    for handler in (connections, caches):  # an import may have asked one of them what it can do
        vars(handler).pop("settings", None)
        handler.__init__()  # type: ignore[misc] # as it was made
    django.setup(set_prefix=False)
