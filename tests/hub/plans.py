"""A client process of a hub that plans runs, option line by option line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
from huggingface_hub import file_download
from huggingface_hub.utils import _http

from ssd_bench.errors import ConfigError
from tests.hub.server import Hub
from tests.runs import environment, planned

MARK = "plan: "
COMMON = ("task=gsm8k", "data=sample", "limit=1", "method=ar")
Usage = namedtuple("Usage", "total used free")


class Client:
    """A process that knows one hub alone.

    Attributes:
        hub: what it knows.
        home: folder of its caches.
    """

    def __init__(self, hub: Hub, home: Path, process: subprocess.Popen[str]):
        self.hub, self.home, self._process = hub, home, process

    def plan(self, *options: str, offline: bool = False, free: int | None = None) -> dict[str, Any]:
        """Return what comes of a line of options: what refuses it, or the model's commit, folder, files and weights.

        Args:
            offline: as with HF_HUB_OFFLINE=1.
            free: bytes that the disk has room for; None: as it is.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([[*options, *COMMON], offline, free]) + "\n")
        self._process.stdin.flush()
        for text in self._process.stdout:
            if text.startswith(MARK):
                result: dict[str, Any] = json.loads(text.removeprefix(MARK))
                return result
        raise AssertionError((self.home / "stderr").read_text(encoding="utf-8")[-3000:])


@contextmanager
def client_of(hub: Hub, home: Path) -> Iterator[Client]:
    """A client process with empty caches while the context lasts."""
    home.mkdir()
    line = [sys.executable, "-m", "tests.hub.plans"]
    with (
        (home / "stderr").open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            env=environment() | hub.variables(home),
        ) as process,
    ):
        try:
            yield Client(hub, home, process)
        finally:
            process.terminate()


def told(line: list[str]) -> dict[str, Any]:
    """Return what comes of a line of options."""
    try:
        plan = planned(Path("runs"), *line)
    except ConfigError as error:
        return {"field": error.field, "message": str(error)}
    except Exception as error:  # a fault of the code under test, which the test is to see
        return {"error": repr(error)}
    files = sorted({path.name for path in plan.model.checkpoint.shards.values()})
    folder = str(plan.model.checkpoint.folder)
    return {"commit": plan.model.checkpoint.commit, "folder": folder, "files": files, "weights": plan.origin.weights}


def serve() -> None:
    """Answer each line of standard input."""
    usage = shutil.disk_usage
    for module in (file_download, _http):  # a server of tests needs no pause between the client's tries
        module.time = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
    for text in sys.stdin:
        options, offline, free = json.loads(text)
        huggingface_hub.constants.HF_HUB_OFFLINE = offline
        shutil.disk_usage = usage if free is None else lambda _, free=free: Usage(2**40, 2**40 - free, free)
        print(MARK + json.dumps(told(options)), flush=True)


if __name__ == "__main__":
    serve()
