"""Collect the reports of all stages, and render them for people and for machines."""
