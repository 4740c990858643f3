"""`accept --convert`: suites of earlier releases, and what was accepted of them, in the form of now."""
