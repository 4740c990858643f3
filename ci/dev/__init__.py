"""The project's own upkeep: lint and benchmarks."""
