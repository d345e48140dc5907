"""Which exchange an installation is a member of."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ExchangeAccess:
    """Which exchange this installation is a member of, and what proves it."""

    url: str = ""
    """Base address; empty: none."""
    member: str = ""
    key: bytes = field(default=b"", repr=False)
