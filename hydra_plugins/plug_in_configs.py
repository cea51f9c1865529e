"""Hydra plugin that adds the configs of installed plug-ins (`ssd_bench.plug_ins`) to Hydra's search path."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from ssd_bench.plug_ins import plug_ins


class PlugInConfigs(SearchPathPlugin):
    """Configs of plug-ins, searched after those of the project."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder of each plug-in; `file://`, because `pkg://` would import the package."""
        for plug_in in plug_ins():
            search_path.append(provider=str(plug_in), path=f"file://{plug_in.conf}")
