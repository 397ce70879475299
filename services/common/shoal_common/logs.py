"""Log lines: JSON on stderr, one line an event, with the service and the request id bound in."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(service: str, level: str = "info") -> None:
    """Sets up structlog and routes the standard library's loggers (nats, grpc) through it."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    structlog.contextvars.bind_contextvars(service=service)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger named for what it speaks of."""
    return structlog.get_logger(component=name)
