"""The supervisor's two outputs, which a full disk must not turn into its end: its log, and what `up.json` says.

Invariant: neither raises. What could not be written is written once it can be: `up.json` in a later round, and the log
says how many lines it lacks.
"""

import logging
from collections.abc import Mapping
from typing import TextIO, cast

import structlog

from flexmarl.host.output import Unfailing
from flexmarl.launcher.home import Home
from flexmarl.launcher.state import Record, write_state


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


class Publisher:
    """`up.json` of one launch, written when it differs from what was written last."""

    def __init__(self, home: Home, launch: str, log: structlog.typing.FilteringBoundLogger) -> None:
        self._home, self._launch, self.log = home, launch, log
        self.ready = False
        """Whether the address was announced."""
        self._written: object = None
        self._failing = False

    def publish(self, url: str, records: list[Record], refused: Mapping[str, str]) -> None:
        """Make the file say this. Called in every round, so a failure is made good as soon as it can be."""
        wanted = (url, self.ready, list(records), dict(refused))
        if wanted == self._written:
            return
        try:
            write_state(self._home, launch=self._launch, url=url, ready=self.ready, records=records, refused=refused)
        except OSError as error:
            if not self._failing:
                self.log.error("up.json not written", reason=str(error))
            self._failing = True
            return
        self._written, self._failing = wanted, False
