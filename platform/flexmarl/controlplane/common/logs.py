"""Log lines of the control plane: structlog, with the request's and the run's id in every line."""

import logging
import logging.config
from typing import Any

import structlog

from flexmarl.store.telemetry.log_shipping import LogShipper

_shipper: LogShipper | None = None


def _forward(logger: object, method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    if _shipper is not None:
        _shipper.offer_event(event, str(event.get("level", method)))
    return event


def ship(shipper: LogShipper) -> None:
    """Carry this process's lines about runs to the store as well, from now on."""
    global _shipper  # noqa: PLW0603 - logging is set up before the database is known
    _shipper = shipper


def configure(options: dict[str, Any]) -> None:
    """Set up logging from the LOGGING setting: {level, json}."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if options["json"]
        else [structlog.dev.ConsoleRenderer(colors=False)]
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        "foreign_pre_chain": shared,
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"lines": formatter},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
            "root": {"handlers": ["stderr"], "level": options["level"]},
        }
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _forward,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
