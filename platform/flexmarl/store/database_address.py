"""DATABASE_URL as all processes read it: one server, or several of which one may be written to.

`postgresql://user:password@one:5432,two:5432/name?target_session_attrs=read-write` finds the primary among its replicas
whichever of them it is, at every new connection.
"""

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

EXAMPLE = "postgresql://user:password@host:5432/database"
WRITABLE = ("read-write", "primary")
"""Values of target_session_attrs with which a connection never ends at a replica."""
_SCHEMES = frozenset({"postgresql", "postgres"})
_LARGEST_PORT = 65535


def read(name: str, url: str) -> dict[str, str]:
    """Return libpq's words of an address; hosts and ports of several servers are lists with commas.

    Raises ValueError that names the variable, the rule and a legal value, and never the address: it holds a password.
    """
    try:
        legal = url.partition("://")[0] in _SCHEMES
        found = {word: str(value) for word, value in conninfo_to_dict(url).items()} if legal else {}
    except (ValueError, ProgrammingError):  # a bracket that is not closed, an option that libpq does not know
        legal, found = False, {}
    ports = list(filter(None, found.get("port", "").split(",")))
    if not legal or not all(port.isdecimal() and 0 < int(port) <= _LARGEST_PORT for port in ports):
        raise ValueError(f"{name} is not a legal address; it must look like {EXAMPLE}")
    if "," in found.get("host", "") and found.get("target_session_attrs") not in WRITABLE:
        raise ValueError(
            f"{name} names several servers, so it must say that the one to be written to is wanted: end it with"
            " ?target_session_attrs=read-write"
        )
    return found


def authority(hosts: str, ports: str, default: str = "") -> str:
    """Return `host:port`, of several servers with commas, as it stands in an address; IPv6 gets its brackets."""
    names, given = hosts.split(","), ports.split(",")
    numbers = given * len(names) if len(given) == 1 else given
    pairs = zip(names, numbers, strict=True)
    return ",".join(bracketed(host) + (f":{port or default}" if port or default else "") for host, port in pairs)


def bracketed(host: str) -> str:
    """Return a host as it stands in an address."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
