"""Hydra's results for the files in `conf` and for a choice among them: once per process, then copied.

This is more than half of a config's 0.2 s. Hydra parses, checks and applies a command line's options every time, to a
new config. Copies are pickled and read again: an eighth of the time of `copy.deepcopy`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides, create_defaults_list
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from ssd_bench.conf import CONF

LASTING = ["hydra.conf", str(CONF), ""]
"""Sources of a command line without plug-ins and own folders, to which no test writes."""

_files: dict[str, bytes] = {}
_lists: dict[object, DefaultsList] = {}
_configs: dict[str, bytes] = {}


def compose_once() -> None:
    """Let Hydra keep what it reads and composes in this process."""
    repository: Any = ConfigRepository
    repository.load_config = _reading_once(repository.load_config)
    loader: Any = ConfigLoaderImpl
    loader._compose_config_from_defaults_list = _copying(loader._compose_config_from_defaults_list)
    module: Any = config_loader_impl
    module.create_defaults_list = _defaults_list
    caching: Any = CachingConfigRepository
    caching.__init__ = _share_sources


def _lasts(repo: IConfigRepository, *names: str) -> bool:
    """Return whether no test changes these contents of a repository; each sweep registers experiments."""
    sources = [source.path for source in repo.get_sources()]
    return sources == LASTING and not any("experiment" in name for name in names)


def _share_sources(caching: CachingConfigRepository, delegate: IConfigRepository) -> None:
    """Begin a cache without a deep copy of the sources, which have Hydra's whole store and are only replaced."""
    caching.delegate, caching.cache = copy(delegate), {}


def _reading_once(load: Callable[..., ConfigResult | None]) -> Callable[..., ConfigResult | None]:
    """Wrap `load_config`, which reads a file."""

    def kept(repo: ConfigRepository, config_path: str) -> ConfigResult | None:
        if not _lasts(repo, config_path):
            return load(repo, config_path)
        if config_path not in _files:
            _files[config_path] = pickle.dumps(load(repo, config_path))
        found: ConfigResult | None = pickle.loads(_files[config_path])
        return found

    return kept


def _defaults_list(
    repo: CachingConfigRepository, config_name: str | None, overrides_list: list[Override], **options: bool
) -> DefaultsList:
    """Do what `create_defaults_list` does, but look up the same choices once."""
    others = Overrides(repo, overrides_list).config_overrides
    choices = [override for override in overrides_list if not any(override is other for other in others)]
    lines = [str(choice.input_line) for choice in choices]
    if not _lasts(repo, *lines):
        return create_defaults_list(repo, config_name, overrides_list, **options)
    key = config_name, *lines, *options.items()
    if key not in _lists:
        _lists[key] = create_defaults_list(repo, config_name, choices, **options)
    return replace(_lists[key], config_overrides=others)


def _copying(compose: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Wrap `_compose_config_from_defaults_list`, which merges the chosen files."""

    def copied(loader: ConfigLoaderImpl, defaults: list[ResultDefault], repo: CachingConfigRepository) -> DictConfig:
        if not _lasts(repo):
            return compose(loader, defaults, repo)
        key = repr(defaults)
        if key not in _configs:
            _configs[key] = pickle.dumps(compose(loader, defaults, repo))
        config: DictConfig = pickle.loads(_configs[key])
        return config

    return copied
