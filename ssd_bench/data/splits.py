"""Splits of data sets, read by `datasets` from the files of one commit."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_bench.data.repository import Repository
from ssd_bench.model.fetch import reason

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

PLACES = ("name", "version", "data_dir", "data_files", "description", "features")
"""Fields of a builder's config that do not affect how a file is read."""


class SplitError(ValueError):
    """A missing split; the message lists the available ones."""


class LayoutError(ValueError):
    """A repository without the requested data; the message is from `datasets`."""


@dataclass(frozen=True)
class Split:
    """A split of one configuration: memory-mapped rows, files, and the card's number of rows, if stated for all."""

    data: Dataset
    files: tuple[str, ...]
    stated: int | None


def read_split(repository: Repository, name: str | None, split: str, options: Mapping[str, Any]) -> Split:
    """Read a split, and download only its files.

    Args:
        name: configuration; None: the default.
        split: in the notation of `datasets`: `test`, `train[:10%]`, `train+test`.
        options: further arguments of `datasets.load_dataset`.

    Raises:
        SplitError: no such split.
        LayoutError: no such configuration, or no files.
        Exception: other errors of `datasets` and the hub's client.
    """
    import datasets

    labels = [part.partition("[")[0].strip() for part in split.split("+")]
    with repository.outline() as folder:
        try:
            builder = datasets.load_dataset_builder(str(folder), name=name, **options)
        except Exception as error:  # its errors have no common type
            raise LayoutError(reason(error).replace(str(folder), repository.path)) from error
        listed = {
            label: [Path(path).relative_to(folder).as_posix() for path in paths]
            for label, paths in (builder.config.data_files or {}).items()
        }
    if absent := [label for label in labels if label not in listed]:
        raise SplitError(f"no {', '.join(absent)}: the splits are {', '.join(map(str, listed))}")
    files = {label: listed[label] for label in labels}
    places = {label: [glob.escape(str(repository.file(name))) for name in names] for label, names in files.items()}
    data = datasets.load_dataset(
        builder.name, data_files=places, split=split, features=builder.info.features, **_reading(builder)
    )
    stated = (builder.info.splits or {}).get(split)
    names = tuple(name for names in files.values() for name in names)
    return Split(data, names, None if stated is None else stated.num_examples)


def _reading(builder: DatasetBuilder) -> dict[str, Any]:
    """Return the settings of a configuration that affect how files are read, such as a CSV's separator."""
    chosen = {}
    for field in dataclasses.fields(builder.config):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(builder.config, field.name)
        if field.name not in PLACES and value is not default and value != default:
            chosen[field.name] = value
    return chosen
