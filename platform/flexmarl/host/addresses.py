"""What an address means to the host that uses it."""

from ipaddress import ip_address


def is_own_host(host: str) -> bool:
    """Tell whether a name or an address, in brackets or not, is that of the host itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
