"""What is not ours: text, as it may reach a terminal, a log or a page; and files that somebody posted, with
what reading them may cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from provisioning.base.errors import ToolkitError

MEMORY, MEMORY_A_BYTE = 1 << 30, 3
"""Bytes that reading a file may take: libraries hold a content up to three times."""
SECONDS, BYTES_A_SECOND = 20.0, 50 << 20
"""Seconds are of the processor, so that a busy machine changes nothing. Reading takes a tenth of them."""
AGAIN = 0.1
"""The refusal is raised again after as many seconds each time: Python may have dropped it, or somewhere below
any error counts as damage of one part."""

# Control characters except tab and newline, the C1 range, direction marks, lone surrogates, and what else XML
# cannot hold.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
# What GitHub's runner takes for a command: it looks at each line without the blanks around it.
_COMMAND = re.compile(r"^(\s*)::|##\[", re.MULTILINE)


def visible(text: str) -> str:
    """Return the text with everything that would steer a terminal or a CI runner, or hide, shown as an
    escape."""
    if not text.isprintable():
        text = _UNPRINTABLE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    return _COMMAND.sub(lambda match: "##\\[" if match[1] is None else f"{match[1]}\\::", text)


def escape_line(text: str) -> str:
    """Return the same as a part of one line: its own line ends are escapes too."""
    return visible(text.replace("\r", "\\r").replace("\n", "\\n"))


def one_line(text: str) -> str:
    """Return the same with one blank for any number of blanks and line ends."""
    return " ".join(visible(text).split())


def map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same value with `change` applied to each text and number that is anywhere in it, names
    included."""
    if isinstance(value, Mapping):
        return {change(name): map_values(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_values(inner, change) for inner in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: map_values(getattr(value, part.name), change) for part in fields(value)}
        return replace(value, **parts)
    return change(value)


@contextmanager
def limit_work(size: int, refusal: ToolkitError) -> Iterator[None]:
    """Raise `refusal` if work on files of `size` bytes takes more memory or time than they can need."""
    import resource
    import signal
    import sys

    def refuse(*_: object) -> None:
        raise refusal

    def hide_lost(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_value is not refusal:
            hook(lost)

    status = Path("/proc/self/status").read_text(encoding="utf-8")
    usage = next(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("VmData:"))
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    own = usage + MEMORY + MEMORY_A_BYTE * size
    most = min(limit for limit in (own, *limits) if limit != resource.RLIM_INFINITY)
    handler = signal.signal(signal.SIGPROF, refuse)
    # Python drops and prints what is raised in a finalizer or while garbage is collected.
    hook, sys.unraisablehook = sys.unraisablehook, hide_lost
    resource.setrlimit(resource.RLIMIT_DATA, (most, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS + size / BYTES_A_SECOND, AGAIN)
    try:
        yield
    except MemoryError as error:
        raise refusal from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        sys.unraisablehook = hook
        resource.setrlimit(resource.RLIMIT_DATA, limits)
