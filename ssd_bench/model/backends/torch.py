"""PyTorch's own operators, one after the other, on any device: what every other backend is held against."""

from typing import ClassVar

from ssd_bench.model.decoder import Decoder


class TorchDecoder(Decoder):
    """The decoder as it is."""

    name: ClassVar[str] = "torch"
    rank: ClassVar[int] = 0
    device_types: ClassVar[tuple[str, ...]] = ("cpu", "cuda")


BACKEND = TorchDecoder
