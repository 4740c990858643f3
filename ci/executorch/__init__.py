"""Lowering models to the HTP: the suite, the audit of what was delegated, and the judgement of programs."""

import re

NATIVE_ERROR = re.compile(r"\[ERROR\] \[Qnn ExecuTorch\]:\s*(?:<E>)?\s*(\S.+)")
"""The start of QNN's own messages in a log; the first one is nearest to the cause."""

DIES_OF = "the compiler dies of "
"""The start of a log line that names operators."""

PROGRAM = "program.pte"
"""The file of a program in a result's folder."""

QUANTIZED = "quantized.pt2"
"""The file of a quantized model in a result's folder."""

KEPT = "programs"
"""The folder of the reports that `--keep-programs` fills."""
