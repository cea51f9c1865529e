"""A client process of a hub that plans runs, reads data and runs command lines, one after the other."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import huggingface_hub.constants
from huggingface_hub import file_download
from huggingface_hub.utils import _http

from ssd_bench.compose.build import build
from ssd_bench.contract.task import DataSpec, Task
from ssd_bench.data import HubSource, LocalSource
from ssd_bench.errors import ConfigError
from tests.hub.layouts import jsonl, local_rows
from tests.hub.server import Hub
from tests.runs import composed, environment, planned, program

MARK = "answer: "
COMMON = ("task=gsm8k", "data=sample", "limit=1", "method=ar")
Usage = namedtuple("Usage", "total used free")


class Client:
    """A process that knows one hub alone.

    Attributes:
        home: folder of its caches.
    """

    def __init__(self, hub: Hub, home: Path, process: subprocess.Popen[str]):
        self.hub, self.home, self._process = hub, home, process

    def plan(self, *options: str, **around: Any) -> dict[str, Any]:
        """Plan a line of options; return its refusal, or the model's commit, folder, files and weights."""
        return self._answer("plan", [*options, *COMMON], **around)

    def run(self, *words: str, **around: Any) -> subprocess.CompletedProcess[str]:
        """Run a command line, as in a process of its own."""
        return subprocess.CompletedProcess(words, *self._answer("run", words, **around))

    def read(self, path: str, *revisions: str, **around: Any) -> list[Any]:
        """Read a data set's test split; return the questions and the fingerprint, or the refusal, of each revision."""
        return self._answer("read", [path, *revisions], **around)

    def prompts(self, cases: Sequence[list[str]]) -> list[str]:
        """Compare prompts of tasks with those of local files; return a text for each list of options."""
        return self._answer("prompts", cases)

    def _answer(
        self, kind: str, words: Sequence[Any], offline: bool = False, token: str = "", free: int | None = None
    ) -> Any:
        """Return the answer of the process to a request.

        Args:
            offline: as with HF_HUB_OFFLINE=1.
            token: as with HF_TOKEN.
            free: free bytes on the disk; None: as it is; with 0 no download can be stored.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"kind": kind, "words": words, "offline": offline, "token": token, "free": free}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for text in self._process.stdout:
            if text.startswith(MARK):
                return json.loads(text.removeprefix(MARK))
        raise AssertionError((self.home / "stderr").read_text(encoding="utf-8")[-3000:])


@contextmanager
def client_of(hub: Hub, home: Path) -> Iterator[Client]:
    """Run a client process with empty caches."""
    home.mkdir()
    line = [sys.executable, "-m", "tests.hub.client"]
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
    try:
        plan = planned(Path("runs"), *line)
    except ConfigError as error:
        return {"field": error.field, "message": str(error)}
    except Exception as error:  # a fault of the code under test, which the test is to see
        return {"error": repr(error)}
    files = sorted({path.name for path in plan.model.checkpoint.shards.values()})
    folder = str(plan.model.checkpoint.folder)
    return {"commit": plan.model.checkpoint.commit, "folder": folder, "files": files, "weights": plan.origin.weights}


def ran(words: list[str]) -> list[Any]:
    done = program(*words)
    return [done.returncode, done.stdout, done.stderr]


def outcomes(cases: list[list[str]]) -> list[str]:
    with TemporaryDirectory() as folder:
        return [outcome(options, Path(folder, str(i))) for i, options in enumerate(cases)]


def outcome(options: list[str], folder: Path) -> str:
    """Return `equal`, or how a task's prompts differ from those of local files of the same items, or a refusal."""
    folder.mkdir()
    try:
        task: Task = build(composed(*options), "task")
        source, counts = HubSource(), []
        for template in ("plain", "chat"):
            for spec in task.files(template):
                items = local_rows(spec.name, spec.hub["split"]) if spec.hub else []
                (folder / f"{spec.name}.jsonl").write_text(jsonl(items), encoding="utf-8")
            prompts, expected = (task.prompts(origin, template, None, 5) for origin in (source, LocalSource(folder)))
            if list(prompts) != list(expected):
                pairs = [(a, b) for a, b in zip(prompts, expected) if a != b]
                return f"{template}: {len(prompts)} and {len(expected)} prompts, first difference {pairs[:1]}"
            counts.append(len(prompts))
        fingerprints = [source.fingerprint(spec) for spec in task.files("plain")]
        return f"equal {counts[0]} {' '.join(fingerprints)}"
    except ConfigError as error:
        return str(error)


def rows(words: list[str]) -> list[Any]:
    path, *revisions = words
    return [_rows(path, revision) for revision in revisions]


def _rows(path: str, revision: str) -> list[Any] | str:
    hub, source = {"path": path, "name": None, "split": "test", "revision": revision}, HubSource()
    spec = DataSpec("toy", ("question",), hub)
    try:
        return [[row["question"] for row in source.rows(spec)], source.fingerprint(spec)]
    except ConfigError as error:
        return str(error)


ANSWERS: Mapping[str, Callable[[list[Any]], Any]] = {"plan": told, "run": ran, "read": rows, "prompts": outcomes}


def refuse_to_store(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def serve() -> None:
    """Answer each line of standard input."""
    usage, store = shutil.disk_usage, file_download.http_get
    for module in (file_download, _http):  # a server of tests needs no pause between the client's tries
        module.time = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
    for text in sys.stdin:
        request = json.loads(text)
        free = request["free"]
        huggingface_hub.constants.HF_HUB_OFFLINE = request["offline"]
        shutil.disk_usage = usage if free is None else lambda _, free=free: Usage(2**40, 2**40 - free, free)
        file_download.http_get = refuse_to_store if free == 0 else store
        with patch.dict(os.environ, HF_TOKEN=request["token"]):
            answer = ANSWERS[request["kind"]](request["words"])
        print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
