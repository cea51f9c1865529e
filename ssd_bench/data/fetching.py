"""Downloads of the tasks' hub files, with a check of all rows and the commit to pin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssd_bench.compose.build import task_named, task_settings
from ssd_bench.contract.task import DataSpec
from ssd_bench.data.hub import OFFLINE, HubSource
from ssd_bench.errors import ConfigError


def fetch(choices: Sequence[str], every: bool = False) -> None:
    """Download and check every hub file of the tasks, with the template `plain`, which reads all files.

    Args:
        choices: as for `task_named`.
        every: pass over files that the hub lacks.

    Raises:
        ConfigError: the hub cannot be reached; after all files, an unusable file.
    """
    failed = []
    fetched: dict[str, tuple[int, str | None]] = {}
    for choice in choices:
        print(choice)
        try:
            files, settings = task_named(choice).files("plain"), task_settings(choice)
        except ConfigError as error:
            print(f"  FAILED {error}")
            failed.append(choice)
            continue
        _reach_hub(files)
        for spec in files:
            if every and not spec.hub:
                print(f"  {spec.name}: not on the hub; data=local data.root=DIR reads DIR/{spec.name}.jsonl")
                continue
            try:
                print(f"  {spec.name}: {_fetch_file(spec, settings, fetched)}")
            except ConfigError as error:
                print(f"  {spec.name}: FAILED {error}")
                failed.append(choice)
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        raise ConfigError("TASK", names, reason="each line marked FAILED above gives the reason")


def _fetch_file(spec: DataSpec, settings: Mapping[str, Any], fetched: dict[str, tuple[int, str | None]]) -> str:
    content, hub = repr(replace(spec, place=None)), spec.hub
    if content not in fetched:
        fetched[content] = HubSource().survey(spec)
    rows, commit = fetched[content]
    expected = "as expected" if hub.get("rows") else "expected number not set"
    label = f"{hub['path']} {hub['split']}, {rows} rows ({expected})"
    if commit is None:
        return f"{label}, a folder without commits"
    label += f", {hub['revision']} is {commit}"
    if hub["revision"] == commit:
        return label
    return f"{label}; pin with {next(_options_of(settings, hub), 'task.hub')}.revision={commit}"


def _options_of(settings: Mapping[str, Any], hub: Mapping[str, Any], at: str = "task") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            if value == hub:
                yield f"{at}.{key}"
            yield from _options_of(value, hub, f"{at}.{key}")


def _reach_hub(files: Sequence[DataSpec]) -> None:
    """Refuse at once without a network: the hub's client would retry for every file."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if all(not spec.hub or Path(str(spec.hub.get("path"))).is_dir() for spec in files):
        return
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE", "1", reason=f"fetch reads the hub, so unset it; {OFFLINE}")
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # the HTTP library below the hub's client, and with it the type, depends on the version
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        unreachable = f"it cannot be reached ({reason}); with HF_HUB_OFFLINE=1 no run waits for it; {OFFLINE}"
        raise ConfigError("hub", constants.ENDPOINT, reason=unreachable) from error
