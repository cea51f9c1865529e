"""Kills at every call of some functions, each in its own process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ssd_bench.lease import Owner


def dead(path: Path) -> None:
    """Leave an ended process's lease."""
    path.write_text(json.dumps(vars(replace(Owner.current(), begun=1.0))), encoding="utf-8")


def kill_at_every_call(
    root: Path, names: Sequence[str], work: Callable[[Path], object], prepare: Callable[[Path], object] = lambda _: None
) -> None:
    """Do some work in folder after folder: in `root/1` until its first call of these os functions, and so on.

    Args:
        root: gets the folders; the last has finished work.
        work: makes its folder.
        prepare: is done first, without a kill.
    """
    kill_at, killed = 0, True
    while killed:
        kill_at += 1
        folder = root / str(kill_at)
        prepare(folder)
        child = os.fork()
        if not child:
            _until_call(kill_at, names)
            work(folder)
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _until_call(kill_at: int, names: Sequence[str]) -> None:
    """Replace functions of os so that a certain call ends the process."""
    calls = 0

    def deadly(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in names:
        setattr(os, name, deadly(getattr(os, name)))
