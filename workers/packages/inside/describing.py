"""Makes the manifest of a package: which environments it offers, with which options, for which roles, which agent
programs, which servers of tools, and which commands.

The last line of its output is the manifest as JSON, or why there is none; what foreign code prints goes elsewhere.
"""

import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

from .adapters import offers_of
from .finding import commands_of
from .jobs import confined, quietly
from .programs import programs_of
from .servers import served, servers_of
from .shapes import broke, offered

MOST_OFFERS = 500
MOST_COMMANDS = 100
MANIFEST_VERSION = 1


def main(arguments: Sequence[str]) -> None:
    """Write the manifest."""
    job, how = confined(arguments)
    try:
        servers, silent = quietly(lambda: servers_of(job))
        named = bool(job.entry and servers)
        programs, broken = ([], []) if named else quietly(lambda: programs_of(job))
        broken = [*broken, *silent]
        commands = [] if job.entry else commands_of(job.distribution)
        needed = None if programs or servers or commands else broken
        offers, left_out = ([], []) if named else quietly(lambda: offers_of(job, needed))
        left_out = [*broken, *left_out]
        if job.entry and offers:  # a function that makes an environment
            programs = []
        manifest: dict[str, Any] = {
            "version": MANIFEST_VERSION,
            "python": platform.python_version(),
            "sandbox": how,
            "environments": [offered(one) for one in offers[:MOST_OFFERS]],
            "programs": programs[:MOST_OFFERS],
            "servers": [served(one) for one in servers],
            "commands": [{"name": name} for name in commands[:MOST_COMMANDS]],
            "left_out": [{"name": name, "reason": reason[:300]} for name, reason in left_out[:MOST_OFFERS]],
        }
        text = json.dumps(manifest, allow_nan=False)
    except BaseException as error:  # foreign code: whatever importing it raises is why there is no manifest
        text = json.dumps(broke(error))
    os.write(1, text.encode("utf-8", "replace") + b"\n")
    sys.stdout.flush()
    os._exit(0)
