"""`accept --convert`: suites of earlier releases, and their baselines, in the form of now."""
