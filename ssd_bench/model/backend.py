"""Choice of the backend that runs the passes of a run."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import torch

from ssd_bench.errors import ConfigError
from ssd_bench.model import backends
from ssd_bench.model.arithmetic import Arithmetic
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.weights import load


@dataclass(frozen=True)
class Backend:
    """An available backend; `warning` says why `auto` did not choose a faster one for this kind of device, or is ""."""

    kind: type[Decoder]
    arithmetic: Arithmetic
    warning: str = ""

    def load(self, checkpoint: Checkpoint, dtype: torch.dtype, devices: Sequence[torch.device]) -> Decoder:
        """Load a checkpoint's decoder, with its blocks spread evenly over `devices` in order.

        Raises:
            ConfigError: as `weights.load`.
        """
        pack = self.kind.operators(self.arithmetic).pack
        return self.kind(self.arithmetic, load(checkpoint, dtype, devices, pack))


def all_backends() -> dict[str, type[Decoder]]:
    """Return every backend by name, in `auto`'s order of preference."""
    modules = (import_module(f"{backends.__name__}.{info.name}") for info in pkgutil.iter_modules(backends.__path__))
    kinds: list[type[Decoder]] = [module.BACKEND for module in modules]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: -kind.rank)}


def check_name(choice: str) -> None:
    """Raise ConfigError if a value of `hardware.kernels` is neither auto nor a backend."""
    if choice != "auto" and choice not in all_backends():
        raise ConfigError("hardware.kernels", choice, f"one of auto, {', '.join(reversed(all_backends()))}")


def select(
    device: torch.device | str, dtype: torch.dtype, choice: str = "auto", isa: str = "auto", spread: bool = False
) -> Backend:
    """Return the backend for weights of a dtype on a device; `auto` takes the highest available rank.

    Args:
        spread: the blocks are on other devices, too.
        choice, isa: `hardware.kernels` and `hardware.isa`.

    Raises:
        ConfigError: the backend is unknown or cannot serve, or this CPU lacks the level.
    """
    check_name(choice)
    device, warning = torch.device(device), ""
    for kind in all_backends().values() if choice == "auto" else [all_backends()[choice]]:
        if device.type not in kind.device_types:
            problem = f"the {kind.name} kernels run on {' or '.join(kind.device_types)}, not on {device}"
        elif spread and not kind.spreads:
            problem = f"the {kind.name} kernels run on one device"
        else:
            problem = kind.problem(dtype, isa)
            if not problem:
                return Backend(kind, kind.decide(device, dtype, isa), warning)
            warning = warning or f"{kind.name} kernels unavailable, decoding is slower: {problem}"
    raise ConfigError("hardware.kernels", choice, reason=f"{problem}; use another, or auto")
