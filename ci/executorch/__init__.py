"""Lowering models to the HTP: the suite, the audit of what was delegated, and the judgement of programs."""
