"""Log lines of worker processes: one JSON object per line on standard error, with run and command bound where known.

Invariants: third-party loggers (dramatiq, aiohttp) speak through the same lines. Lines that name a run also go to the
store once `ship` was called; that never blocks and never fails a caller (store.log_shipping).
"""

import logging
import sys
from collections.abc import Callable

import psycopg
import structlog

from flexmarl.store.telemetry.log_shipping import LogShipper

_shipper: LogShipper | None = None


def _forward(logger: object, method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    if _shipper is not None:
        _shipper.offer_event(event, str(event.get("level", method)))
    return event


_SHARED: list[structlog.types.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
]


def configure(process: str, **fields: str) -> None:
    """Set logging up for this process; `process` and the fields stand in every line."""
    structlog.contextvars.bind_contextvars(process=process, **fields)
    constant = {"process": process, **fields}

    def identify(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        return {**constant, **event}  # threads do not inherit context variables

    structlog.configure(
        processors=[identify, *_SHARED, _forward, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[identify, structlog.stdlib.add_logger_name, *_SHARED],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def ship(connect: str | Callable[[], psycopg.Connection], component: str, node: str) -> LogShipper:
    """Carry this process's lines about runs to the store as well, from now on."""
    global _shipper  # noqa: PLW0603 - loggers exist before the database is known
    _shipper = LogShipper(connect, component, node)
    _shipper.start()
    return _shipper


def shipper() -> LogShipper | None:
    """Return what carries lines to the store, None before `ship`."""
    return _shipper
