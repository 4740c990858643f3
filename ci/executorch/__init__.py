"""Lowering models to the HTP: the suite, the audit of what was delegated, and the judgement of programs."""

import re

NATIVE_ERROR = re.compile(r"\[ERROR\] \[Qnn ExecuTorch\]:\s*(?:<E>)?\s*(\S.+)")
"""QNN's own words in a log; the first of them is nearest to the cause."""

DIES_OF = "the compiler dies of "
"""Begins a line of the log that names operators."""
