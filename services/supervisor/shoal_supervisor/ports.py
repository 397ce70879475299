"""TCP ports of this machine: whether one is free, and finding one that stays so."""

from __future__ import annotations

import errno
import random
import socket

from shoal_supervisor.errors import CannotStart

HOST = "127.0.0.1"
# Below Linux's range for outgoing connections: none of them takes the port while its server restarts.
STABLE_PORTS = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    try:
        _bind(port)
    except OSError:
        return False
    return True


def check_free(port: int) -> None:
    """Returns if a server can listen on the port.

    Raises:
        CannotStart: it is taken, or this user may not use it.
    """
    try:
        _bind(port)
    except PermissionError:
        raise CannotStart(f"port {port} needs privileges: choose one above 1023 with --port") from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise CannotStart(f"cannot listen on {HOST}:{port}: {error.strerror}") from None
        raise CannotStart(
            f"port {port} is taken by another process: end it (`ss -ltnp 'sport = :{port}'` names it), "
            "or choose another with --port"
        ) from None


def free_port() -> int:
    """A port that is free now and that no outgoing connection will take.

    Raises:
        CannotStart: none is free.
    """
    for port in random.sample(STABLE_PORTS, 500):
        if is_free(port):
            return port
    raise CannotStart(f"no free port between {STABLE_PORTS.start} and {STABLE_PORTS.stop} on {HOST}")


def _bind(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers bind: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        probe.listen(1)
