"""A Ray cluster of two nodes on one machine, on loopback, with made-up GPUs."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.services import LOOPBACK, Services, free_ports, until

RAY = (sys.executable, "-m", "ray.scripts.scripts")


class RayCluster:
    """Two nodes of one CPU and one GPU each.

    Args:
        folder: for all its files; short, as it holds sockets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services = Services(folder, mark=str(folder))
        (port,) = free_ports(1)
        self.address = f"{LOOPBACK}:{port}"
        self._port = port

    def start(self) -> None:
        size = ["--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000", f"--node-ip-address={LOOPBACK}"]
        start = [*RAY, "start", "--block", "--disable-usage-stats", *size]
        head = ["--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        self.services.start("head", [*start, *head], {"CUDA_VISIBLE_DEVICES": "5"})
        until(lambda: "started" in self._output("head"), "the head of Ray")
        self.services.start("second", [*start, f"--address={self.address}"], {"CUDA_VISIBLE_DEVICES": "7"})
        until(lambda: "started" in self._output("second"), "the second node of Ray")

    def _output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(encoding="utf-8")

    def environment(self) -> dict[str, str]:
        return self.services.environment()

    def stop(self) -> None:
        self.services.stop()
