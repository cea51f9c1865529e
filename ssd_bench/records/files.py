"""Files of a record, read with errors that name the path.

Resumed runs use these, but not `ssd_bench.records.reader`, whose changes make no run stale.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ssd_bench.errors import ConfigError, brief
from ssd_bench.paths import write_atomic
from ssd_bench.records.schema import SCHEMA_VERSION

TEXT = pd.StringDtype("python", na_value=np.nan)
"""Type of texts in frames: a selection of rows takes half as long as with Arrow's texts, the default of pandas."""
REPEATED = "force=true in its command measures the run again"

RESULTS = "results.parquet"
"""Numbers from the run's tables (`ssd_bench.results.table_file`); no part of the record."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Pyarrow would take `exp:2/steps.parquet` for a URI, and `~` for the home folder.

    Raises:
        OSError: no such file, or a folder, pipe or device (which could block for ever).
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as one compressed `.npz`, completely or not at all."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    write_atomic(path, file.getvalue())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ConfigError: missing or damaged; names the path.
    """
    try:
        with open_regular(path) as file:
            content = json.loads(file.read())
        if isinstance(content, dict):
            return content
        reason = "it holds no JSON object"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise ConfigError("record", str(path), f"an intact file ({reason}); {REPEATED}")


def read_header(run_dir: Path) -> dict[str, Any]:
    """Read run.json of a run, complete or not.

    Raises:
        ConfigError: missing, damaged, or of a newer schema; names the path.
    """
    path = Path(run_dir) / "run.json"
    header = read_json(path)
    version = header.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ConfigError("schema_version", brief(version), f"at most {SCHEMA_VERSION}; {path} needs a newer ssd-bench")
    return header


def write_output(option: str, path: Path, text: str) -> None:
    """Write the file that an option names; make its folder if missing.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise ConfigError(option, str(path), f"a file that can be written ({error.strerror or error})") from error


def check_table(path: Path) -> None:
    """Check both ends of a Parquet file, in case it was cut off.

    Raises:
        ConfigError: missing or damaged; names the path.
    """
    try:
        with open_regular(path) as file:
            pq.read_metadata(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError("record", str(path), f"an intact file ({error}); {REPEATED}") from error


def read_table(path: Path, schema: pa.Schema) -> pd.DataFrame:
    """Read the columns of `schema` from a Parquet file, as `table_frame`.

    Raises:
        ConfigError: the file is missing, damaged, without a column, or with forbidden nulls; names its path.
    """
    try:
        with open_regular(path) as file:
            return table_frame(pq.read_table(file, partitioning=None), schema)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise ConfigError("record", str(path), f"an intact file ({error}); {REPEATED}") from error


def table_frame(table: pa.Table, schema: pa.Schema) -> pd.DataFrame:
    """Return the columns of `schema` as a frame.

    Nullable integers get dtype Int32, nullable truth values boolean, texts `TEXT`. A missing nullable column is null.

    Raises:
        KeyError, ValueError, pa.ArrowException: a column is missing, or has another type or forbidden nulls.
    """
    for column in schema:
        if column.nullable and column.name not in table.column_names:
            table = table.append_column(column.name, pa.nulls(len(table), column.type))
    table = table.select(schema.names).cast(schema)
    for column in schema:
        values = table[column.name]
        null_in_lists = pa.types.is_list(column.type) and values.combine_chunks().flatten().null_count
        if null_in_lists or (values.null_count and not column.nullable):
            raise ValueError(f"column {column.name} contains null")
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.string(): TEXT}.get)
    for column in schema:
        if column.nullable and pa.types.is_integer(column.type):
            frame[column.name] = frame[column.name].astype("Int32")
        elif column.nullable and pa.types.is_boolean(column.type):
            frame[column.name] = frame[column.name].astype("boolean")
    return frame
