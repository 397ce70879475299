"""A service that nobody protects listens to this machine alone."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shoal_common.settings import ServiceSettings


@pytest.mark.parametrize("listen", ["127.0.0.1:50051", "127.9.9.9:1", "[::1]:50051", "localhost:50051", "unix:/tmp/s"])
def test_addresses_of_this_machine(listen: str) -> None:
    assert ServiceSettings(listen=listen).listen == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "10.0.0.1:50051", "example.org:50051", ":50051", ""])
def test_any_other_address_is_refused(listen: str) -> None:
    with pytest.raises(ValidationError, match="can be reached from other machines"):
        ServiceSettings(listen=listen)
