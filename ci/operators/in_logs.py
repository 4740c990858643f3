"""What a log of ExecuTorch's partitioner says of operators. Most logs say nothing, and need no table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ci.diagnose.log_text import Readable
from ci.suite.precision import MEASURED_SCHEMES

if TYPE_CHECKING:
    from ci.operators.table import Inexact

DELEGATED = re.compile(rb"\[Q(?:NN|nn) ?Partitioner(?: Op Support)?\]:? (aten\.\w+)\S* \| True")
# What stands before a name is asked behind it: a pattern that begins with its letters is quicker.
NAMES = "|".join(rf"{name}(?<![a-z0-9]{name})" for name in MEASURED_SCHEMES)
SCHEME = re.compile(rf"(?:{NAMES})(?![a-z0-9])".encode())


class Delegated:
    """A log that remembers, while it is read, which operators the partitioner delegates in which schemes."""

    def __init__(self, log: Readable) -> None:
        self._log, self._rest = log, b""
        self._operators, self._schemes = set[bytes](), set[bytes]()

    def read(self, size: int) -> bytes:
        block = self._log.read(size)
        text = self._rest + block
        self._rest = text[-200:]
        # The patterns take a hundred times as long as a look for a word.
        if b"artitioner" in text:
            self._operators |= set(DELEGATED.findall(text))
            self._schemes |= set(SCHEME.findall(text))
        return block

    def inexact(self) -> list[Inexact]:
        if not self._schemes or not self._operators:
            return []
        from ci.operators.table import inexact

        operators = {operator.decode() for operator in self._operators}
        return [row for scheme in sorted(self._schemes) for row in inexact(operators, scheme.decode())]
