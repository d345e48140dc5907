"""Options of `manage.py up`, and the call behind them.

manage.py comes here directly, without loading Django: the supervisor needs none of it, stays small and starts sooner.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from flexmarl.host import disk
from flexmarl.host.output import protect
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import default_home
from flexmarl.launcher.plan import Options
from flexmarl.launcher.up import DEFAULT_PORT, Up

DEMO = "reference_game"
"""Template of the demo that every machine can run."""

HELP = "Start everything on this machine (services, migrations, first admin, all processes) and print the address."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--host", default="127.0.0.1", help="address of the web pages")
    parser.add_argument(
        "--port",
        type=int,
        default=-1,
        help=f"port of the web pages; default {DEFAULT_PORT}, or a free one; 0 selects a free one",
    )
    parser.add_argument("--home", type=Path, help="data folder; default FLEXMARL_HOME or .flexmarl in the checkout")
    parser.add_argument(
        "--demo",
        nargs="?",
        const=DEMO,
        default="",
        metavar="TEMPLATE",
        help=f"also start a demo run, of {DEMO} unless another template is named",
    )
    parser.add_argument(
        "--services-only", action="store_true", help="start the embedded servers alone, such as for a restore"
    )


def up(given: argparse.Namespace, root: Path) -> int:
    """Run until a stop signal; return the exit code. An error is one line on standard error."""
    home = (given.home or default_home(os.environ, root)).expanduser().resolve()
    node = os.environ.get("FLEXMARL_NODE") or socket.gethostname()
    try:
        options = Options(root, home, given.host, given.port, node, given.demo, given.services_only)
        return Up(options, say).run()
    except LaunchError as error:
        sys.stderr.write("; ".join(filter(None, [str(error), disk.describe(home)])) + "\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write("; ".join(filter(None, [f"cannot start in {home}: {error}", disk.describe(home)])) + "\n")
        return LaunchError.exit_code


def say(line: str) -> None:
    """Tell the person at the terminal, at once; a closed terminal or a full disk does not end the installation."""
    sys.stdout.write(f"{line}\n")


def main(arguments: Sequence[str], root: Path) -> int:
    """Read the command line of `manage.py up`."""
    protect()
    parser = argparse.ArgumentParser(prog="manage.py up", description=HELP)
    add_arguments(parser)
    return up(parser.parse_args(arguments), root)
