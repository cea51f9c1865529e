"""Option values with characters of Hydra's grammar: typing them, and errors about unresolved ones."""

from __future__ import annotations

import re
import shlex

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.errors import ConfigError


def as_text(name: str, value: str) -> str:
    """Return how to type a text with characters of Hydra's grammar in a shell."""
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value.replace("${", r"\${"))
    ending = "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    typed = shlex.quote(f'{name}="{escaped}{ending}"')
    return f"as text it is {typed}" if len(value) < 200 else "as text it is in quotes"


def unresolved(cfg: DictConfig, name: str, error: OmegaConfBaseException) -> ConfigError:
    """Return the error for a value whose ${...} names no option."""
    value = OmegaConf.to_container(OmegaConf.masked_copy(cfg, [name.partition(".")[0]]), resolve=False)
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    reason = str(error.msg or error).partition("\n")[0]
    if not isinstance(value, str):
        return ConfigError(name, None, reason=reason)
    return ConfigError(name, value, reason=f"{reason}: ${{...}} refers to an option; {as_text(name, value)}")
