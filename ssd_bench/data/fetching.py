"""Downloads of what tasks read from the hub, with a check of all rows and the commit to pin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssd_bench.compose import TaskChoice
from ssd_bench.data.hub import OFFLINE, HubSource, Survey
from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSpec


def fetch(choices: Sequence[TaskChoice], every: bool = False) -> None:
    """Download and check every hub file that the tasks read with the template `plain`, which reads all there are.

    Args:
        every: a file that the hub does not have is no error.

    Raises:
        ConfigError: the hub cannot be reached, or, after all the others, that a file cannot be used.
    """
    failed = []
    fetched: dict[str, Survey] = {}
    for choice in choices:
        print(choice)
        try:
            files, settings = choice.task().files("plain"), choice.settings()
        except ConfigError as error:
            print(f"  FAILED {error}")
            failed.append(str(choice))
            continue
        _reach_hub(files)
        for spec in files:
            if every and not spec.hub:
                print(f"  {spec.name}: not on the hub; data=local data.root=DIR reads DIR/{spec.name}.jsonl")
                continue
            try:
                print(f"  {spec.name}: {_fetched(spec, settings, fetched)}")
            except ConfigError as error:
                print(f"  {spec.name}: FAILED {error}")
                failed.append(str(choice))
    if failed:
        raise ConfigError("TASK", ", ".join(dict.fromkeys(failed)), "what is marked FAILED above says why")


def _fetched(spec: DataSpec, settings: Mapping[str, Any], fetched: dict[str, Survey]) -> str:
    """Return what to tell of a file; one that several tasks read is read once."""
    content = repr(replace(spec, place=None))
    survey = fetched.get(content)
    if survey is None:
        survey = fetched[content] = HubSource().survey(spec)
    hub = spec.hub
    expected = "as expected" if hub.get("rows") else "expected number not set"
    label = f"{hub['path']} {hub['split']}, {survey.rows} rows ({expected})"
    if survey.commit is None:
        return f"{label}, a folder without commits"
    label += f", {hub['revision']} is {survey.commit}"
    if hub["revision"] == survey.commit:
        return label
    return f"{label}; pin with {next(_places(settings, hub), 'task.hub')}.revision={survey.commit}"


def _places(settings: Mapping[str, Any], hub: Mapping[str, Any], at: str = "task") -> Iterator[str]:
    """The options whose value `hub` is."""
    for key, value in settings.items():
        if isinstance(value, dict):
            if value == hub:
                yield f"{at}.{key}"
            yield from _places(value, hub, f"{at}.{key}")


def _reach_hub(files: Sequence[DataSpec]) -> None:
    """Refuse at once where there is no network: the hub's client would try each file again and again."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if all(not spec.hub or Path(str(spec.hub.get("path"))).is_dir() for spec in files):
        return
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE", "1", f"fetch reads the hub, so it must not be set; {OFFLINE}")
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # of the HTTP client below the hub's own, which changes with its version
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        allowed = f"it cannot be reached ({reason}); with HF_HUB_OFFLINE=1 no run waits for it; {OFFLINE}"
        raise ConfigError("hub", constants.ENDPOINT, allowed) from error
