"""The hub as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.client import Client, client_of
from tests.hub.server import Hub, serving


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Serve an empty hub while the test lasts."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Run a client process with its own hub, for all tests of a module; each test has its own repositories."""
    with serving() as server, client_of(server, tmp_path_factory.mktemp("client") / "home") as process:
        yield process


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the faults of a hub that tests share with the test that made them."""
    yield
    if "client" in request.fixturenames:
        request.getfixturevalue("client").hub.faults.clear()
