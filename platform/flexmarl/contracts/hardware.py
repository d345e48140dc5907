"""What a device is good at, declared per type of device: a router may send work where it suits."""

from collections.abc import Mapping
from enum import StrEnum


class Hardware(StrEnum):
    ANY = ""
    PREFILL = "prefill"
    """Computes long prompts fast."""
    DECODE = "decode"
    """Reads memory fast: many tokens after a short prompt."""
    CPU = "cpu"


def read_classes(text: str) -> dict[str, Hardware]:
    """Read `H100=prefill, H20=decode`: part of a device's name -> class. Raises ValueError naming the legal classes."""
    classes: dict[str, Hardware] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, word = (part.strip() for part in entry.partition("="))
        if not name or word not in set(Hardware) - {Hardware.ANY}:
            legal = ", ".join(sorted(set(Hardware) - {Hardware.ANY}))
            raise ValueError(
                f"{entry!r} is not of the form NAME=CLASS, where NAME is part of a device's name and CLASS is {legal}"
            )
        classes[name] = Hardware(word)
    return classes


def class_of(device_name: str, classes: Mapping[str, Hardware]) -> Hardware:
    """Return the class of the longest declared name that a device's name contains, ANY without one."""
    found = [name for name in classes if name.lower() in device_name.lower()]
    return classes[max(found, key=len)] if found else Hardware.ANY
