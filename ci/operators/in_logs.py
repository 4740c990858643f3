"""What a log of ExecuTorch's partitioner says of operators. Most logs say nothing, and need no table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ci.pipeline.precision import MEASURED_SCHEMES
from provisioning.base.patterns import Pattern

if TYPE_CHECKING:
    from ci.operators.table import Inexact

DELEGATED = Pattern(r"\[Q(?:NN|nn) ?Partitioner(?: Op Support)?\]:? (aten\.\w+)\S* \| True")
# What stands before a name is asked behind it: a pattern that begins with its letters is quicker.
NAMES = "|".join(rf"{name}(?<![a-z0-9]{name})" for name in MEASURED_SCHEMES)
SCHEME = re.compile(rf"(?:{NAMES})(?![a-z0-9])".encode())


def inexact_in(log: bytes) -> list[Inexact]:
    """Those that a log of the partitioner delegates, in the schemes that it names."""
    # The pattern takes a hundred times as long as a look for a word.
    if b"artitioner" not in log or not any(scheme.encode() in log for scheme in MEASURED_SCHEMES):
        return []
    schemes = {scheme.decode() for scheme in SCHEME.findall(log)}
    operators = {str(match.groups()[0] or b"", "utf-8") for match in DELEGATED.find_all(log)}
    if not schemes or not operators:
        return []
    from ci.operators.table import inexact

    return [row for scheme in sorted(schemes) for row in inexact(operators, scheme)]
