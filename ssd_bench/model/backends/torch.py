"""PyTorch's own operators, one by one, on any device: the reference for every other backend."""

from typing import ClassVar

from ssd_bench.model.decoder import Decoder


class TorchDecoder(Decoder):
    """The decoder with PyTorch's operators."""

    name: ClassVar[str] = "torch"
    rank: ClassVar[int] = 0
    device_types: ClassVar[tuple[str, ...]] = ("cpu", "cuda")


BACKEND = TorchDecoder
