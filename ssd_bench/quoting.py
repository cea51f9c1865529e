"""Option values that Hydra's grammar would take for more than text: how to type them, and what a wrong one named."""

from __future__ import annotations

import re
import shlex

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.errors import ConfigError


def as_text(name: str, value: str) -> str:
    """Return how a shell gives an option a text with characters of Hydra's grammar."""
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value.replace("${", r"\${"))
    ending = "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    typed = shlex.quote(f'{name}="{escaped}{ending}"')
    return f"as text it is {typed}" if len(value) < 200 else "as text it is in quotes"


def unresolved(cfg: DictConfig, name: str, error: OmegaConfBaseException) -> ConfigError:
    """Return what is said of a value with a ${...} that names nothing."""
    given = OmegaConf.to_container(OmegaConf.masked_copy(cfg, [name.partition(".")[0]]), resolve=False)
    for part in name.split("."):
        given = given.get(part) if isinstance(given, dict) else None
    reason = str(error.msg or error).partition("\n")[0]
    if not isinstance(given, str):
        return ConfigError(name, None, reason)
    return ConfigError(name, given, f"{reason}, for ${{...}} stands for an option; {as_text(name, given)}")
