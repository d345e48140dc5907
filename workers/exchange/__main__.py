"""Runs the exchange and enrols its members: `python -m workers.exchange serve|enrol|remove --home DIR`."""

import argparse
import re
import sys
import time
from pathlib import Path

from aiohttp import web

from workers import reporting
from workers.exchange.server import ExchangeServer
from workers.exchange.storage import ExchangeStorage, MemberLimits

_MEMBER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DEFAULT = MemberLimits()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m workers.exchange", description=__doc__)
    does = parser.add_subparsers(dest="does", required=True)
    serve, enrol, remove = (does.add_parser(name) for name in ("serve", "enrol", "remove"))
    for each in (serve, enrol, remove):
        each.add_argument("--home", type=Path, required=True, help="folder of exchange.sqlite, for this service alone")
    for each in (enrol, remove):
        each.add_argument("member", help="name of an installation, such as lab-a")
    serve.add_argument("--host", default="127.0.0.1", help="put a TLS proxy in front of any other address")
    serve.add_argument("--port", type=int, default=8790)
    for name, value in _limits().items():
        kind = type(value)
        serve.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value, help="of each member")
    given = parser.parse_args()
    {"serve": _serve, "enrol": _enrol, "remove": _remove}[given.does](given)


def _limits() -> dict[str, int | float]:
    return {name: getattr(_DEFAULT, name) for name in MemberLimits.__slots__}


def _serve(given: argparse.Namespace) -> None:
    reporting.configure("exchange")
    storage = ExchangeStorage(_file(given), MemberLimits(**{name: getattr(given, name) for name in _limits()}))
    web.run_app(ExchangeServer(storage).application(), host=given.host, port=given.port, print=None, access_log=None)
    storage.close()


def _enrol(given: argparse.Namespace) -> None:
    if _MEMBER.fullmatch(given.member) is None:
        sys.exit(f"{given.member!r} is no name of a member; use lower-case letters, digits, . _ and -, such as lab-a")
    key = ExchangeStorage(_file(given)).enrol(given.member, time.time())
    sys.stdout.write(f"FLEXMARL_EXCHANGE_MEMBER={given.member}\nFLEXMARL_EXCHANGE_KEY={key}\n")


def _remove(given: argparse.Namespace) -> None:
    if not ExchangeStorage(_file(given)).remove(given.member):
        sys.exit(f"{given.member} is no member")


def _file(given: argparse.Namespace) -> Path:
    return Path(given.home) / "exchange.sqlite"


if __name__ == "__main__":
    main()
