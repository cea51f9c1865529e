"""Tests get users' configs, though Hydra reads and composes less for them."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from ssd_bench.conf import CONF
from tests import composing

LINES = [
    (),
    ("seed=3", "decode=sample", "limit=2"),
    ("method=knn_ssd", "task@calibrate=stream", "+hardware.x=1"),
    ("task=stream", "~wandb", "hydra/launcher=joblib"),
]


def composed(line: tuple[str, ...]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", list(line), return_hydra_config=True)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_what_is_composed_once_is_what_hydra_composes(line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(composing, "LASTING", [])
        whole = composed(line)
    for _ in range(2):
        kept = composed(line)
        assert OmegaConf.to_yaml(kept) == OmegaConf.to_yaml(whole)
        kept.seed = "of this config alone"
