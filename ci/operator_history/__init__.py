"""The operators on earlier builds: measured by the suites of today, kept where they gave something else."""
