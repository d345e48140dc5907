"""The supervisor's outputs, which a full disk must not turn into its end: its log, and what it tells others in files.

Invariant: none of them raises. What could not be written is written once it can be: a file in a later round, and the
log says how many lines it lacks.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TextIO, cast

import structlog

from flexmarl.host.output import Unfailing
from flexmarl.launcher.home import Home
from flexmarl.launcher.state import ProcessRecord, publish_environment, write_state


def supervisor_log(home: Home) -> structlog.typing.FilteringBoundLogger:
    """Return the supervisor's own log: JSON lines in `logs/supervisor.log`."""
    log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(cast("TextIO", Unfailing(home.open_log("supervisor")))),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
    )
    return log


class _Kept:
    """A file that says what is wanted, written when that differs from what was written last."""

    def __init__(self, name: str, log: structlog.typing.FilteringBoundLogger) -> None:
        self._name, self._log = name, log
        self._written: object = None
        self._failing = False

    def put(self, wanted: object, write: Callable[[], None]) -> None:
        """Make the file say this. Called in every round, so a failure is made good as soon as it can be."""
        if wanted == self._written:
            return
        try:
            write()
        except OSError as error:
            if not self._failing:
                self._log.error(f"{self._name} not written", reason=str(error))
            self._failing = True
            return
        self._written, self._failing = wanted, False


class Publisher:
    """`up.json` and `run/environment.json` of one launch."""

    def __init__(self, home: Home, launch: str, log: structlog.typing.FilteringBoundLogger) -> None:
        self._home, self._launch, self.log = home, launch, log
        self.ready = False
        """Whether the address was announced."""
        self._state, self._addresses = _Kept("up.json", log), _Kept("environment.json", log)

    def publish(self, url: str, records: list[ProcessRecord], refused: Mapping[str, str]) -> None:
        """Say which processes run, and where."""
        ready = self.ready
        self._state.put(
            (url, ready, list(records), dict(refused)),
            lambda: write_state(
                self._home, launch=self._launch, url=url, ready=ready, records=records, refused=refused
            ),
        )

    def publish_environment(self, environment: Mapping[str, str]) -> None:
        """Say at which addresses other commands of the same owner find the services."""
        self._addresses.put(dict(environment), lambda: publish_environment(self._home, environment))
