"""Ports are checked before anything starts."""

import socket

import pytest

from shoal_supervisor import ports
from shoal_supervisor.errors import CannotStart


def test_a_taken_port_is_refused_in_one_line_that_says_what_to_do():
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(CannotStart) as refusal:
            ports.check_free(port)
    assert f"port {port} is taken" in str(refusal.value)
    assert "--port" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    ports.check_free(port)


def test_a_found_port_is_free_and_not_one_that_connections_take():
    port = ports.free_port()
    assert ports.is_free(port)
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        assert port < int(file.read().split()[0])
