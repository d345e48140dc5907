"""Versions on pages: which one an address names, which one it is compared with, and the lines in which two differ."""

from collections.abc import Callable, Sequence
from difflib import unified_diff
from typing import Any

from django.http import HttpRequest

from flexmarl.controlplane.common.problems import NotFound

Version = dict[str, Any]
"""A version as a plain value, with its number."""


def asked(request: HttpRequest, name: str, find: Callable[[int], Version]) -> Version | None:
    """Return the version that the address names. Raises NotFound."""
    if not (text := request.GET.get(name)):
        return None
    if not text.isdecimal() or len(text) > 9:
        raise NotFound(f"There is no version {text[:20]}.")
    return find(int(text))


def before(saved: Sequence[Version], shown: Version) -> Version | None:
    """Return the version before one, of versions that are sorted from the newest."""
    return next((one for one in saved if one["number"] < shown["number"]), None)


def differences(was: Sequence[str], now: Sequence[str]) -> list[dict[str, str]]:
    """Return the lines of two versions, marked where they differ; empty when they are the same."""
    kinds = {"+": "added", "-": "removed"}
    lines = list(unified_diff(was, now, lineterm="", n=len(was) + len(now)))[3:]  # without names and place
    return [{"kind": kinds.get(line[:1], "same"), "text": line} for line in lines]
