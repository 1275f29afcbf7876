#!/usr/bin/env python3
"""Writes the same small tables as CSV, Parquet and Arrow IPC, with pandas, pyarrow and Polars. The test `formats` compares them.

    python3 -m venv venv && venv/bin/pip install pandas pyarrow polars
    venv/bin/python make.py

`wide` has times without a zone, floats of both widths, integers, and missing values and rows. `zoned` has times of New York
across the change of clocks; pandas keeps them in an index without a name. `long` has ids as categories, dates, and several row
groups.
"""

import math
import pathlib

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather

HERE = pathlib.Path(__file__).parent
ROWS = 60


def wide() -> pd.DataFrame:
    rows = np.arange(ROWS)
    a = np.array([math.sin(row * 0.7) * 10.0 ** (row % 9 - 4) for row in rows])
    b = (rows * 0.1 - 2).astype(np.float32)
    c = pd.array(rows * 1_000_003 - 7, dtype="Int64")
    table = pd.DataFrame({"time": pd.date_range("2024-02-28 22:00", periods=ROWS, freq="30min"), "a": a, "b": b, "c": c})
    table.loc[[3, 4, 17], "a"] = np.nan
    table.loc[20, "c"] = pd.NA
    return table.drop(index=[9, 10]).reset_index(drop=True)


def zoned() -> pd.DataFrame:
    times = pd.date_range("2024-03-09 20:00", periods=ROWS, freq="h", tz="America/New_York")
    return pd.DataFrame({"load": np.sqrt(np.arange(ROWS) + 0.3)}, index=times)


def long() -> pd.DataFrame:
    parts = []
    for at, (name, days) in enumerate([("north, old", 30), ("south", 17), ("éast", 24)]):
        ds = pd.date_range("2024-01-01", periods=days, freq="D") + pd.Timedelta(days=at)
        y = np.round(np.cos(np.arange(days) + at) * 100, 3)
        parts.append(pd.DataFrame({"unique_id": name, "ds": ds, "y": y}))
    table = pd.concat(parts, ignore_index=True)
    table["unique_id"] = table["unique_id"].astype("category")
    return table


table = wide()
table.to_csv(HERE / "wide.csv", index=False)
table.to_parquet(HERE / "wide.pandas.parquet", compression="snappy")
pa.feather.write_feather(table, HERE / "wide.pandas.arrow", compression="lz4")
frame = pl.from_pandas(table, nan_to_null=True)
frame.write_csv(HERE / "wide.polars.csv")
frame.write_parquet(HERE / "wide.polars.parquet", compression="zstd")
frame.write_ipc(HERE / "wide.polars.arrow", compression="zstd")
frame.write_ipc_stream(HERE / "wide.polars.arrows", compression="uncompressed")

table = zoned()
table.to_csv(HERE / "zoned.csv", index_label="time")
table.to_parquet(HERE / "zoned.pandas.parquet", compression="zstd")
pl.from_pandas(table.reset_index(names="time")).write_parquet(HERE / "zoned.polars.parquet", compression="snappy")

table = long()
table.to_csv(HERE / "long.csv", index=False)
table.assign(ds=table["ds"].dt.date).to_parquet(HERE / "long.pandas.parquet", compression="gzip", row_group_size=16, index=False)
pl.from_pandas(table).with_columns(pl.col("ds").cast(pl.Date)).write_parquet(HERE / "long.polars.parquet", row_group_size=16)
