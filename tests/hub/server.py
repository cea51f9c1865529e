"""An HTTP server that speaks to `huggingface_hub`, `transformers` and `datasets` as the hub does.

Repositories are in memory: commits of files, and branches. Files over `LFS_FROM` bytes, and all weights and Parquet
files, are served through a redirect to a second host name, as on the hub. A `Fault` makes matching requests fail. Not
shown: pages of a listing, parts of a file, Xet transfers, the hub's limits and real repositories.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

LFS_FROM = 100_000  # bytes
LFS_NAMES = (".safetensors", ".parquet", ".bin", ".gz", ".pth")
DATE = "2024-07-26T00:00:00.000Z"
# /datasets/ID/resolve/REVISION/PATH, where a model's has no `datasets/`; a revision's own slashes come as %2F
RESOLVE = re.compile(r"^/(datasets/)?(.+?)/resolve/([^/]+)/(?P<path>.+)$")
CDN = re.compile(r"^/cdn/(models|datasets)/(.+?)/([0-9a-f]{40})/(?P<path>.+)$")  # the large files' host
API = re.compile(r"^/api/(models|datasets)/(.+?)(?:/(revision|tree)/([^/]+))?$")


@dataclass(frozen=True)
class File:
    """A file of a commit, with hashes like the hub's."""

    content: bytes
    path: str

    @property
    def oid(self) -> str:
        return hashlib.sha1(self.content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def large(self) -> bool:
        """True if git stores a pointer and another host serves the content."""
        return len(self.content) >= LFS_FROM or self.path.endswith(LFS_NAMES)

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid

    @property
    def entry(self) -> dict[str, Any]:
        row = {"type": "file", "oid": self.oid, "size": len(self.content), "path": self.path}
        if self.large:
            row["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 130}
        return row


@dataclass
class Repository:
    """A repository of the hub.

    Attributes:
        commits: 40 hex digits -> files by path.
        branches: name (or tag) -> commit.
        gated: whether files, but not listings, need a token of `readers`.
        private: whether it exists only for requests with a token of `readers`.
        readers: tokens with access.
    """

    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    readers: tuple[str, ...] = ("hf_granted",)

    def commit(self, files: Mapping[str, bytes | str], sha: str | None = None, branch: str | None = "main") -> str:
        """Add a commit of exactly these files, and let the branch point to it.

        Args:
            files: content by path.
            sha: 40 hex digits; None: derived from the content.
        """
        stored = {
            path: File(content.encode() if isinstance(content, str) else content, path)
            for path, content in files.items()
        }
        if sha is None:
            listing = f"{len(self.commits)} {[(path, file.sha256) for path, file in sorted(stored.items())]}"
            sha = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[sha] = stored
        if branch is not None:
            self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


@dataclass
class Fault:
    """A way in which requests fail.

    Attributes:
        pattern: regular expression searched in `METHOD /path?query`.
        status: of the answer; None: the connection is closed after `after` bytes of the content.
        times: how many matching requests fail; None: all.
        headers: of the answer.
        then: called before a matching request is answered, to change something in its middle.
    """

    pattern: str
    status: int | None = 500
    after: int = 0
    times: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    then: Callable[[], object] | None = None


RATE_LIMITED = {
    "RateLimit": '"api";r=0;t=55',
    "RateLimit-Policy": '"fixed window";"api";q=500;w=300',
    "Retry-After": "1",
}


class Hub:
    """Repositories, the server's faults, and its requests.

    Attributes:
        models, datasets: repositories by id.
        faults: tried in order; the first match decides.
        requests: `METHOD /path` and the answer's status, in order.
        endpoint: the server's address, for `HF_ENDPOINT`.
    """

    def __init__(self) -> None:
        self.models: dict[str, Repository] = {}
        self.datasets: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, int]] = []
        self.endpoint = ""
        self.lock = threading.Lock()

    def model(self, name: str) -> Repository:
        return self.models.setdefault(name, Repository())

    def dataset(self, name: str) -> Repository:
        return self.datasets.setdefault(name, Repository())

    def downloads(self) -> list[str]:
        """Return the paths of all requested contents, in order."""
        paths = []
        for line, status in self.requests:
            method, _, target = line.partition(" ")
            address = unquote(urlsplit(target).path)
            match = CDN.match(address) or RESOLVE.match(address)
            if method == "GET" and match is not None and status == 200:
                paths.append(match["path"])
        return paths

    def fault(self, line: str) -> Fault | None:
        """Take a request's fault, which counts as one of its times."""
        with self.lock:
            for fault in self.faults:
                if fault.times != 0 and re.search(fault.pattern, line):
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def variables(self, home: Path) -> dict[str, str]:
        """Return the variables of a client process that knows this hub alone, with caches in a folder."""
        unset = dict.fromkeys(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "")
        addresses = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
        return unset | addresses | {"HF_HUB_DISABLE_TELEMETRY": "1"}


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve an empty hub on a free port of 127.0.0.1."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers one client; `Hub` decides what."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        """Keep the terminal quiet: `Hub.requests` has what came."""

    def _answer(self) -> None:
        self.cut_at: int | None = None
        fault = self.hub.fault(f"{self.command} {self.path}")
        if fault is not None:
            if fault.then is not None:
                fault.then()
            elif fault.status is None:
                self.cut_at = fault.after
            else:
                self._refuse(fault.status, message="planned by the test", **fault.headers)
                return
        url = urlsplit(self.path)
        path = unquote(url.path) if "%2F" not in url.path else url.path
        if (match := CDN.match(unquote(path))) is not None:  # without a token: a large file's address is the permission
            file = getattr(self.hub, match[1])[match[2]].commits[match[3]][match["path"]]
            self._send(200, file.content, ETag=f'"{file.etag}"')
        elif (match := API.match(path)) is not None:
            kind, name, verb, revision = match.groups()
            self._api(kind, name, verb, unquote(revision or "main"))
        elif (match := RESOLVE.match(path)) is not None:
            self._resolve("datasets" if match[1] else "models", match[2], unquote(match[3]), unquote(match["path"]))
        else:
            self._refuse(404, message="Not Found")

    def _commit(self, kind: str, name: str, revision: str) -> tuple[Repository, str] | None:
        """Return the repository and a commit, or answer with an error."""
        repository: Repository | None = getattr(self.hub, kind).get(name)
        if repository is None or (repository.private and self._token() not in repository.readers):
            # The hub does not tell an anonymous client whether a repository is private or does not exist. It sends
            # its 401 without a code, which the client takes for this over https alone.
            self._refuse(404 if self._token() else 401, "RepoNotFound", "Invalid username or password.")
            return None
        sha = repository.resolve(revision)
        if sha is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, sha

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _api(self, kind: str, name: str, verb: str | None, revision: str) -> None:
        if (commit := self._commit(kind, name, revision)) is None:
            return
        repository, sha = commit
        files = repository.commits[sha]
        if verb == "tree":
            self._json(_entries(files))
        else:
            shown: dict[str, Any] = {"_id": "0", "id": name, "modelId": name, "sha": sha, "private": repository.private}
            shown |= {"gated": "manual" if repository.gated else False, "disabled": False, "tags": [], "downloads": 0}
            shown |= {"likes": 0, "lastModified": DATE, "createdAt": DATE}
            self._json(shown | {"siblings": [{"rfilename": path} for path in files]})

    def _resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        if (commit := self._commit(kind, name, revision)) is None:
            return
        repository, sha = commit
        if path not in repository.commits[sha]:
            self._refuse(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": sha})
        elif repository.gated and self._token() not in repository.readers:
            status = 403 if self._token() else 401
            message = f"Access to {kind.removesuffix('s')} {name} is restricted."
            self._refuse(status, "GatedRepo", message, **{"X-Repo-Commit": sha})
        else:
            file = repository.commits[sha][path]
            headers = {"X-Repo-Commit": sha, "ETag": f'"{file.etag}"'}
            if file.large:
                target = f"http://localhost:{self.server.server_address[1]}/cdn/"
                target += quote(f"{kind}/{name}/{sha}/{path}")
                headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))}
                self._send(302, b"", Location=target, **headers)
            else:
                self._send(200, file.content, **headers)

    def _json(self, value: object, **headers: str) -> None:
        self._send(200, json.dumps(value).encode(), **{"Content-Type": "application/json"}, **headers)

    def _refuse(self, status: int, code: str | None = None, message: str = "", **headers: str) -> None:
        told = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, json.dumps({"error": message}).encode(), **told, **headers)

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.hub.requests.append((f"{self.command} {self.path}", status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        cut = self.cut_at if status == 200 and self.command == "GET" else None
        if cut is not None:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:cut])
        self.close_connection |= cut is not None


def _entries(files: Mapping[str, File]) -> list[dict[str, Any]]:
    """Return the rows of a listing: files, and folders of all depths."""
    rows: dict[str, dict[str, Any]] = {}
    for path, file in sorted(files.items()):
        for parent in map(str, [*PurePosixPath(path).parents][:-1]):
            oid = hashlib.sha1(parent.encode()).hexdigest()
            rows.setdefault(parent, {"type": "directory", "oid": oid, "size": 0, "path": parent})
        rows[path] = file.entry
    return list(rows.values())
