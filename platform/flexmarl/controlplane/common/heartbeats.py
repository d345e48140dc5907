"""The heartbeat of a process of the control plane, from the settings."""

from django.conf import settings

from flexmarl.store.control.heartbeat import Heartbeat


def heartbeat_of(kind: str) -> Heartbeat:
    """Return the heartbeat of this process, not yet started."""
    return Heartbeat(kind, node=settings.NODE, place=settings.PLACE, descriptor=settings.HEARTBEAT_DESCRIPTOR)
