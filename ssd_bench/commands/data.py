"""List, fetch and check the data of the tasks.

`python -m ssd_bench data list | fetch TASK… | check DIR [TASK…]`

    list                 every task with its files, their fields and their source on the Hugging Face hub
    fetch TASK…          download the tasks' data from the hub into its usual cache (HF_HOME) and check all rows;
                         `all` for every task
    check DIR [TASK…]    check the JSONL files of a folder (data=local data.root=DIR); without TASK the files of all
                         tasks
    check FILE.jsonl     check one file of prompts of your own, as task=jsonl task.path=FILE.jsonl reads it

TASK is a name from `list`, or NAME:VARIANT (gsm8k:conflayers). Exit code 2 if a file or row cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench.compose.build import task_names
from ssd_bench.console import tool
from ssd_bench.data import checking, fetching, listing
from ssd_bench.errors import ConfigError


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Run the named part of the command."""
    command, *values = arguments or [""]
    match command:
        case "list" if not values:
            listing.show()
        case "fetch" if values:
            every = values == ["all"]
            fetching.fetch(task_names() if every else values, every)
        case "check" if values:
            folder, *names = values
            checking.check(folder, names)
        case _:
            expected = "list, fetch TASK… (or all), or check DIR [TASK…]; -h explains them"
            raise ConfigError("command", " ".join(arguments), expected)
