"""Serving keys to look at: one much used, one of a single version that met its quota, one revoked."""

from datetime import UTC, datetime, timedelta
from typing import Any


def serving_keys(model: str) -> None:
    """Make the keys, with their use of yesterday, today and tomorrow: pages are looked at for a while."""
    from flexmarl.controlplane.common.actor import Actor
    from flexmarl.controlplane.playground.keys import revoke
    from flexmarl.controlplane.playground.models import ServingDay

    shop, nightly, old = (
        _made("Shop window", 60, 100_000),
        _made("Nightly evaluation", 10, 5_000),
        _made("Old demo", 5, 500),
    )
    nightly.model_names = [f"{model}/speaker@12", f"{model}/listener"]
    nightly.save()
    revoke(Actor.system(), "default", old.id)
    today = datetime.now(UTC).date()
    for away in (-1, 0, 1):
        day = {"day": today + timedelta(days=away)}
        ServingDay.objects.create(key=shop, requests=812, prompt_tokens=21_093, completion_tokens=40_211, **day)
        ServingDay.objects.create(
            key=nightly, requests=44, refused=3, prompt_tokens=2_010, completion_tokens=2_960, **day
        )


def _made(name: str, requests: int, tokens: int) -> Any:
    """Make a key of the default project."""
    from flexmarl.controlplane.common.actor import Actor
    from flexmarl.controlplane.playground.keys import create

    return create(Actor.system(), "default", name, requests, tokens)[0]
