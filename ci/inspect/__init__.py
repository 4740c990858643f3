"""`inspect` and `diagnose`: what is inside a program, and what a failure means."""
