"""The user's own line in a stack trace that torch has kept with a node."""

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
    """The innermost frame that is not of a library; of a library where there is no other."""
    frames = FRAME.findall(trace)
    own = [frame for frame in frames if not any(part in frame[0] for part in OUTSIDE) and frame[0][:1] != "<"]
    if not (own or frames):
        return None
    path, line, _, code = (own or frames)[-1]
    return Frame(path, int(line), code.strip())
