"""What the supervisor does for the home between two rounds of its processes: services run, logs keep their size."""

import structlog

from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.revival import Revival
from flexmarl.launcher.rotation import EVERY_S, rotate
from flexmarl.launcher.valkey import EmbeddedValkey


class Upkeep:
    """The embedded services and the logs of one launch."""

    def __init__(
        self,
        home: Home,
        postgres: EmbeddedPostgres | None,
        valkey: EmbeddedValkey | None,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._home, self._valkey, self._log = home, valkey, log
        self._revivals = [Revival(service, log) for service in (postgres, valkey) if service]
        self._rotate_at = 0.0

    def round(self, now: float) -> bool:
        """Kill a service that hangs, bring back what ended, cut long logs. Return whether a service came back."""
        if self._valkey and (reason := self._valkey.hangs(now)):
            self._log.warning("hung", process=self._valkey.name, reason=reason)
            self._valkey.kill()
        revived = [revival.round(now) for revival in self._revivals]
        if now >= self._rotate_at:
            self._rotate_at = now + EVERY_S
            rotate(self._home.logs)
        return any(revived)
