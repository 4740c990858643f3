"""Errors that say nothing about a model: the machine ran out of memory or disk."""

from __future__ import annotations

import re

RAN_OUT = re.compile(
    r"bad[_ ]alloc|out of memory|[Cc]an(?:'t|not) allocate memory|Failed to allocate memory"
    r"|No space left on device"
)


def ran_out(error: BaseException) -> bool:
    """Whether the error, or one that caused it, is of memory or of the disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | OSError) or RAN_OUT.search(str(cause)):
            return True
        cause = cause.__cause__
    return False
