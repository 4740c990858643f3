"""Lowering models to the HTP: the suite, the audit of what was delegated, and what the programs hold."""
