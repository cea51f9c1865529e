"""Faults that tests have to catch: each is planted in a copy of the project, where the tests that should fail are run.

`python -m tests.planted_faults [--list] [N …]`

Without numbers, all faults of `planted_faults.yaml` are planted, one after the other. First the tests are run without
a fault, and have to pass. The project itself is never changed. Exit code: 0 all were caught; 1 a fault was missed, or a
test fails without one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

ROOT = Path(__file__).parents[1]
LONGEST_S = 1800  # a test that takes longer is in an endless loop, which is noticed too
FAILED = (1, 2)  # exit codes of pytest: a test failed; a test file cannot be imported


@dataclass(frozen=True)
class Fault:
    """A change that makes the code wrong.

    Attributes:
        what: the mistake, in a few words.
        right: text that occurs exactly once in the file.
        wrong: text that replaces it.
        tests: names of the test files that should notice.
    """

    what: str
    file: str
    right: str
    wrong: str
    tests: Sequence[str]

    @property
    def test_files(self) -> list[str]:
        return [f"tests/{name}.py" for name in self.tests]

    def plant(self, root: Path) -> None:
        """Make the change in a copy of the project.

        Raises:
            ValueError: the text does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.right)) != 1:
            raise ValueError(f"{self.file} has this text {count} times, expected once: {self.right}")
        path.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


def read_faults() -> list[Fault]:
    """Return the faults, numbered from 1 on the command line."""
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return [Fault(**entry) for entry in entries]


def copy_project(folder: Path) -> None:
    """Copy files that git tracks, and new ones that it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def failed_test(folder: Path, files: Sequence[str]) -> str:
    """Run test files of a copy, and return the first failure's name, or "".

    Raises:
        RuntimeError: pytest itself failed.
    """
    # no bytecode: that of a change within a second, of the same length, would count as that of the right text
    variables = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    try:
        done = subprocess.run(line, cwd=folder, env=variables, capture_output=True, encoding="utf-8", timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"no end within {LONGEST_S} s"
    if not done.returncode:
        return ""
    failure = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in FAILED or failure is None:
        raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failure[1]


def plant(faults: Sequence[tuple[int, Fault]]) -> int:
    """Plant faults in a copy, print each outcome, and return the exit code."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        copy_project(folder)
        files = dict.fromkeys(file for _, fault in faults for file in fault.test_files)
        if test := failed_test(folder, list(files)):
            print(f"without a fault, this test fails: {test}")
            return 1
        caught = 0
        for number, fault in faults:
            fault.plant(folder)
            start = time.monotonic()
            test = failed_test(folder, fault.test_files)
            seconds = time.monotonic() - start
            shutil.copy2(ROOT / fault.file, folder / fault.file)
            caught += bool(test)
            print(f"{number:2}  {'caught' if test else 'MISSED'}  {seconds:5.0f} s  {fault.what}  {test}", flush=True)
    print(f"{caught} of {len(faults)} faults were caught")
    return int(caught < len(faults))


def main() -> int:
    """Plant the faults that the command line names, or list all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, metavar="N", help="a fault's number; none: all")
    parser.add_argument("--list", action="store_true", help="print the faults")
    arguments = parser.parse_args()
    faults = dict(enumerate(read_faults(), start=1))
    if unknown := set(arguments.numbers) - set(faults):
        parser.error(f"N={min(unknown)} is invalid: expected 1 to {len(faults)}")
    if arguments.list:
        for number, fault in faults.items():
            print(f"{number:2}  {fault.what} ({fault.file}: {', '.join(fault.tests)})")
        return 0
    return plant([(number, faults[number]) for number in arguments.numbers or faults])


if __name__ == "__main__":
    sys.exit(main())
