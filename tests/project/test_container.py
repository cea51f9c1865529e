"""The container recipe: its commands are Makefile targets and existing files; all is pinned."""

from __future__ import annotations

import re
import subprocess
from functools import cache

from tests.runs import ROOT

RECIPE = (ROOT / "Containerfile").read_text(encoding="utf-8")
ARTIFACT = (ROOT / "docs" / "artifact.md").read_text(encoding="utf-8")
LINES = [line.split(maxsplit=1) for line in RECIPE.splitlines() if line and not line.startswith("#")]
COMMANDS = [rest for word, rest in LINES if word == "RUN"]


@cache
def targets() -> set[str]:
    made = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    return set(re.findall(r"^  make (\S+)", made.stdout, re.MULTILINE))


def test_the_base_image_and_pytorch_are_the_users_choice() -> None:
    assert LINES[0] == ["ARG", "BASE"] and LINES[1] == ["FROM", "${BASE}"]  # no default, which would be a tag
    (torch,) = (rest for word, rest in LINES if word == "ARG" and rest.startswith("TORCH="))
    (default,) = re.findall(r"^TORCH \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert torch == f'TORCH="{default}"'


def test_packages_come_from_the_system_and_from_the_lock_alone() -> None:
    *system, setup = COMMANDS
    assert system and all(command.startswith("apt-get ") for command in system)
    assert setup == 'make setup TORCH="${TORCH}"' and "setup" in targets()
    assert "pip" not in " ".join(COMMANDS)
    assert [rest for word, rest in LINES if word == "CMD"] == ['["make", "run"]'] and "run" in targets()
    assert {word for word, _ in LINES} == {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "CMD"}


def test_the_image_has_every_file_that_set_up_and_runs_need() -> None:
    """.dockerignore leaves out only files outside the repository, and records unpacked on first use."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    left_out = [pattern for pattern in patterns if not pattern.startswith("!")]
    listed = ["git", "ls-files", "--", *(pattern for pattern in left_out if pattern != "runs/*")]
    assert subprocess.run(listed, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout == ""
    runs = subprocess.run(["git", "ls-files", "runs"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert "!runs/reference" in patterns
    assert all(name.startswith("runs/reference/") for name in runs.stdout.split())


def test_the_system_packages_of_the_document_are_those_of_the_recipe() -> None:
    (documented,) = re.findall(r"`apt-get install ([^`]+)`", ARTIFACT)
    (installed,) = (command for command in COMMANDS if " install " in command)
    packages = {word for word in installed.split() if not word.startswith("-")} - {"apt-get", "install"}
    assert packages == {*documented.split(), "ca-certificates"}  # which every installed system has


def test_what_the_document_names_exists() -> None:
    made = set(re.findall(r"(?:^|`)make ([a-z-]+)", ARTIFACT, re.MULTILINE))
    assert {"setup", "run", "fast", "test", "replicate-mini", "audit-papers", "weights"} <= made <= targets()
    (listed,) = re.findall(r"`ls ([^`]+)`", ARTIFACT)
    assert all((ROOT / name).is_file() for name in listed.split())
    assert all((ROOT / name).is_file() for name in re.findall(r"`(tests/\w+\.py)`", ARTIFACT))
    for badge in ("available", "functional", "reproduced"):
        assert re.search(rf"^\| {badge} \|", ARTIFACT, re.MULTILINE)
