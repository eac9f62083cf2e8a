# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: lists of records as tables."""

from __future__ import annotations

import dataclasses
import html
import importlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

_T = TypeVar("_T")
_MOST_ROWS = 50


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; a cell that is None is empty."""

    def line(tag: str, cells: Iterable[object]) -> str:
        texts = ("" if cell is None else html.escape(str(cell)) for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def size(nbytes: float) -> str:
    """A number of bytes with a unit, as the command shows it."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1023.5 or unit == "TiB":
            break
        nbytes /= 1024
    decimals = 0 if unit == "B" or nbytes >= 99.95 else 1 if nbytes >= 9.995 else 2
    return f"{nbytes:.{decimals}f} {unit}"


def cell(name: str, value: object) -> object:
    """The text of a record's field in a table."""
    match value:
        case bool():
            return "yes" if value else None
        case int() if name.endswith("bytes"):
            return size(value)
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S %Z}"
        case dict():
            pairs = (
                f"{key} {inner:g}" if isinstance(inner, float) else f"{key} {inner}" for key, inner in value.items()
            )
            return ", ".join(pairs)
    return value


class Rows(list[_T]):
    """A list of records; a notebook shows it as a table.

    A class of records may name its columns in ``_columns``; else all of its fields are shown.
    """

    def _repr_html_(self) -> str:
        if not self:
            return "<i>none</i>"
        names = self._names(short=True)
        shown = table(names, ([cell(name, getattr(each, name)) for name in names] for each in self[-_MOST_ROWS:]))
        more = len(self) - _MOST_ROWS
        return f"<i>{more} more before these</i>{shown}" if more > 0 else shown

    def to_pandas(self) -> Any:
        """A DataFrame of pandas, a row for each record and a column for each field.

        Returns:
            ``pandas.DataFrame``.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = importlib.import_module("pandas")
        names = self._names(short=False)
        return pandas.DataFrame([[getattr(each, name) for name in names] for each in self], columns=names)

    def _names(self, *, short: bool) -> list[str]:
        if not self:
            return []
        first: Any = self[0]
        names = [field.name for field in dataclasses.fields(first)]
        return list(getattr(first, "_columns", names)) if short else names
