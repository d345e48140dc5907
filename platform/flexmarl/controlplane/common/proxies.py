"""Who calls, when a proxy stands between: forwarded headers count from trusted proxies alone.

`X-Forwarded-For`, `-Proto` and `-Host` are text that any caller can send. They are believed when the peer of the
connection lies in one of `FLEXMARL_TRUSTED_PROXIES`; otherwise they are removed here, in front of everything, so that
nothing further in can believe them. The caller is the rightmost address that no trusted proxy has: everything to the
left of it was written by somebody who is not trusted. Loopback is nobody special.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

Networks = Sequence[IPv4Network | IPv6Network]
Header = tuple[bytes, bytes]
FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port", b"forwarded")
_SCHEMES = {"http": {"http": "http", "https": "https"}, "websocket": {"http": "ws", "https": "wss"}}


class TrustedProxies:
    """ASGI: gives requests and sockets the address, scheme and host that a trusted proxy saw."""

    def __init__(self, inner: Any, trusted: Networks) -> None:
        self._inner, self._trusted = inner, trusted

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Rewrite the scope, then go on."""
        known = scope["type"] in _SCHEMES
        return await self._inner(seen_through(scope, self._trusted) if known else scope, receive, send)


def seen_through(scope: dict[str, Any], trusted: Networks) -> dict[str, Any]:
    """Return a connection's scope as the outermost trusted proxy saw it, without any forwarded header."""
    headers: list[Header] = [pair for pair in scope["headers"] if pair[0] not in FORWARDED]
    peer, port = scope.get("client") or ("", 0)
    plain = {**scope, "headers": headers, "client": (_normal(peer), port)}
    if not _is_trusted(peer, trusted):
        return plain
    given = {name: _values(scope["headers"], name) for name in FORWARDED}
    scheme = _SCHEMES[scope["type"]].get(_last(given[b"x-forwarded-proto"]).lower(), scope.get("scheme", "http"))
    if host := _last(given[b"x-forwarded-host"]):
        headers = [*(pair for pair in headers if pair[0] != b"host"), (b"host", host.encode("latin-1"))]
    address = client_address(peer, given[b"x-forwarded-for"], trusted)
    return {**plain, "headers": headers, "scheme": scheme, "client": (address, port if address == peer else 0)}


def client_address(peer: str, forwarded: Sequence[str], trusted: Networks) -> str:
    """Return the rightmost address of a chain that is not a trusted proxy's; text that is no address ends the chain."""
    nearest = _normal(peer)
    for hop in (peer, *reversed(forwarded)):
        address = _parse(hop)
        if address is None:
            return nearest
        nearest = str(address)
        if not _within(address, trusted):
            return nearest
    return nearest


def _values(headers: Sequence[Header], name: bytes) -> list[str]:
    texts = [value.decode("latin-1") for found, value in headers if found == name]
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _last(values: Sequence[str]) -> str:
    return values[-1] if values else ""


@lru_cache(maxsize=4096)
def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, with or without brackets and port; an IPv4 address inside IPv6 is the IPv4 address."""
    bare = text.strip().strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _normal(text: str) -> str:
    address = _parse(text)
    return text if address is None else str(address)


def _is_trusted(peer: str, trusted: Networks) -> bool:
    address = _parse(peer)
    return address is not None and _within(address, trusted)


def _within(address: IPv4Address | IPv6Address, networks: Networks) -> bool:
    return any(address in network for network in networks)
