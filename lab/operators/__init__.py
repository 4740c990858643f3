"""The operator table and its page, measured by tests of ExecuTorch and ours."""

from typing import Literal, get_args

MeasuredScheme = Literal["fp16", "8a8w", "16a8w", "16a4w", "16a4w_block", "16a16w", "8a4w"]
MEASURED_SCHEMES: tuple[MeasuredScheme, ...] = get_args(MeasuredScheme)
"""The columns of the table of operators."""

PLAIN = "plain"
"""Our own case of usual values and shape."""
