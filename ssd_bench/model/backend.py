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
    """A backend that can serve, chosen before anything large is loaded.

    Attributes:
        kind: decoder class that runs the passes.
        arithmetic: arithmetic of all passes.
        warning: reason why `auto` did not choose a faster backend for this kind of device; empty if it did.
    """

    kind: type[Decoder]
    arithmetic: Arithmetic
    warning: str = ""

    def load(self, checkpoint: Checkpoint, dtype: torch.dtype, devices: Sequence[torch.device]) -> Decoder:
        """Load the decoder of a checkpoint, its blocks spread evenly over `devices` in order.

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
    """Refuse a value of `hardware.kernels` that names no backend.

    Raises:
        ConfigError: the value is neither auto nor the name of a backend.
    """
    if choice != "auto" and choice not in all_backends():
        raise ConfigError("hardware.kernels", choice, f"one of auto, {', '.join(reversed(all_backends()))}")


def select(
    device: torch.device | str, dtype: torch.dtype, choice: str = "auto", isa: str = "auto", spread: bool = False
) -> Backend:
    """Return the backend for weights of a dtype on a device; `auto` takes the highest in rank that can serve.

    Args:
        spread: whether the blocks are on other devices too.
        choice: `hardware.kernels`.
        isa: `hardware.isa`.

    Raises:
        ConfigError: a backend that does not exist or cannot serve, or a level that this CPU lacks.
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
