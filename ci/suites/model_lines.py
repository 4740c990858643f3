"""The user's own line in the stack trace that torch keeps with a node."""

from __future__ import annotations

import re
from dataclasses import dataclass

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(?!File ")([^\n]+))?')
OUTSIDE = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True, slots=True)
class Frame:
    path: str
    line: int
    code: str


def user_frame(trace: str) -> Frame | None:
    """The innermost frame outside libraries; if there is none, the innermost frame."""
    frames = FRAME.findall(trace)
    own = [frame for frame in frames if not any(part in frame[0] for part in OUTSIDE) and frame[0][:1] != "<"]
    if not (own or frames):
        return None
    path, line, _, code = (own or frames)[-1]
    return Frame(path, int(line), code.strip())
