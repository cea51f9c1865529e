"""Layer sets of one model on one task as points of draft cost c and acceptance rate α: chosen sets and the frontier.

    runs_dir/frontier/MODEL.TASK.json     written by `python -m studies.frontier`

Draft cost c is the time of a drafted token over that of an AR step, both by the machine's latency profile. α is the
share of AR's output tokens that a set predicts when it drafts 8 of them at a time, teacher-forced: every earlier token
is right. All sets predict the same tokens, so that α compares sets, not prompts or stop rules.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError

FOLDER = "frontier"


@dataclass(frozen=True)
class Use:
    """Use of a set in a run: `share` of the run's drafted tokens came from it."""

    run: str
    method: str
    share: float


@dataclass(frozen=True)
class Point:
    """Layer set with its draft cost c and its teacher-forced acceptance rate α.

    Attributes:
        skipped: skipped sublayers, ascending.
        uses: runs that drafted with it; empty for a set found only by the frontier search.
        window: (sinks, recent) positions read by its attentions; None: all.
    """

    skipped: tuple[int, ...]
    cost: float
    alpha: float
    uses: tuple[Use, ...] = ()
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plane:
    """All points of a model and task.

    Attributes:
        search: for the frontier: `exhaustive`, or `beam` of some width.
        tried: number of scored sets.
        tokens: denominator of α.
        context: mean context of the costs.
        verify: time to verify γ = 0, 1, ... drafted tokens, in AR steps.
        frontier: Pareto-optimal sets of all scored ones, with chosen sets.
        chosen: sets used in runs.
    """

    model: str
    task: str
    n_layers: int
    search: str
    tried: int
    tokens: int
    context: float
    verify: tuple[float, ...]
    frontier: tuple[Point, ...]
    chosen: tuple[Point, ...]

    def speedup(self, cost: float, alpha: float) -> float:
        """Return the speedup over AR at the best draft length, by TPT (KnapSpec Eq. 4) with measured verifications."""
        # cost and verify are in AR steps, not ms: tpt then counts tokens per 1000 AR steps, and AR makes 1000
        return max(tpt(alpha, n, cost, verify) for n, verify in enumerate(self.verify)) / 1000


def plane_path(runs_dir: Path, model: str, task: str) -> Path:
    return runs_dir / FOLDER / f"{model}.{task}.json"


def read(path: Path) -> Plane:
    """Read a plane.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
        points = {name: tuple(map(_point, content.pop(name))) for name in ("frontier", "chosen")}
        return Plane(**content | points | {"verify": tuple(content["verify"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            "frontier", str(path), f"a file written by studies.frontier; this one is damaged ({error})"
        ) from error


def _point(content: dict[str, Any]) -> Point:
    uses, window = tuple(Use(**use) for use in content["uses"]), content.get("window")
    parsed = {"skipped": tuple(content["skipped"]), "uses": uses, "window": window and tuple(window)}
    return Point(**content | parsed)
