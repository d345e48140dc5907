#!/usr/bin/env python3
"""Entry point of every management command. Puts the source root `platform/` and the repository root on the path."""

import gc
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent

NEED_DATABASE = {
    "changepassword", "create_token", "createsuperuser", "dbshell", "drive", "migrate", "prepare", "serve", "shell",
    "start_demo",
}  # fmt: skip
"""Commands that need a database; refused without one, before a connection times out."""

LONG_RUNNING = {"drive", "prepare", "serve", "simulations"}
"""Commands that continue when their output cannot be written, and that leave nothing to be done when they return."""

COLLECTED_AFTER = 20_000
"""New objects after which the garbage collector looks for cycles. It does at 700 by default, and finds none among the
modules that a command loads: a sixth of the time to start."""


def join_running_installation() -> None:
    """Set the addresses of the services that `up` runs here, unless others are set."""
    from flexmarl.launcher.home import Home, default_home
    from flexmarl.launcher.state import adopt

    home = default_home(os.environ, ROOT)
    adopt(Home(home), os.environ)
    wants_help = {"-h", "--help"} & set(sys.argv)
    if {*sys.argv[1:2]} & NEED_DATABASE and not wants_help and not os.environ.get("DATABASE_URL"):
        sys.exit(
            f"no installation is running in {home}: start it with `manage.py up`, or set DATABASE_URL and REDIS_URL"
        )


def main() -> None:
    """Run the management command named on the command line."""
    for folder in (str(ROOT), str(ROOT / "platform")):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if sys.argv[1:2] == ["up"]:
        from flexmarl.launcher import cli

        sys.exit(cli.main(sys.argv[2:], ROOT))
    if sys.argv[1:2] == ["postgres"]:
        from flexmarl.launcher import database_programs

        sys.exit(database_programs.main(sys.argv[2:], ROOT))
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
    join_running_installation()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flexmarl.controlplane.settings.development")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from flexmarl.host import exits, output

    long_running = bool({*sys.argv[1:2]} & LONG_RUNNING)
    if long_running:
        output.protect()
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        exits.refuse(str(error))
    if long_running:
        exits.leave()


if __name__ == "__main__":
    main()
