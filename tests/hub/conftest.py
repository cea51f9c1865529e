"""A client of a hub as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.client import Client, client_of
from tests.hub.server import serving


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Run a client process with its own hub; each test has its own repositories, or finds those of the data sets."""
    with serving() as server, client_of(server, tmp_path_factory.mktemp("client") / "home") as process:
        yield process


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    """End a test's faults on a shared hub."""
    yield
    if "client" in request.fixturenames:
        request.getfixturevalue("client").hub.faults.clear()
