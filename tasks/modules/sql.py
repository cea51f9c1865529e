"""SQL queries by execution, for `evaluate.load`."""

from __future__ import annotations

from tasks.modules.base import ScorerModule
from tasks.scoring.sql import SqlExecution


class SqlModule(ScorerModule):
    """`tasks.scoring.sql.SqlExecution`."""

    def scorer(self) -> SqlExecution:
        """With its defaults."""
        return SqlExecution()
