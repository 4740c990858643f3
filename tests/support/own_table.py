"""A table of operators of a test's own, in place of the shipped one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from ci.operators import table
from ci.operators.table import OperatorTable, rows_by_key


@contextmanager
def own_table(
    measured: Mapping[str, str] | None = None,
    cells: Mapping[str, Any] | None = None,
    onnx: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """The versions by chip, the rows of ExecuTorch's operators by name, and those of ONNX's."""
    own = OperatorTable.model_validate({"measured": measured or {}, "cells": cells or {}}, strict=False)
    own_onnx = OperatorTable.model_validate({"cells": onnx or {}}, strict=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "shipped", lambda: own)
        patch.setattr(table, "shipped_rows", lambda: rows_by_key(own.cells))
        patch.setattr(table, "shipped_onnx", lambda: own_onnx)
        yield
