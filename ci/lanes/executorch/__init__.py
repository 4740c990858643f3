"""Lowering models to the HTP: the suite, the audit of what was delegated, and the judgement of programs."""

PROGRAM = "program.pte"
"""The file of a program in a result's folder."""

QUANTIZED = "quantized.pt2"
"""The file of a quantized model in a result's folder."""

REWRITTEN, SAMPLES = "rewritten.pt2", "samples"
"""The file of a rewritten model in a result's folder, and the folder of samples for it."""
