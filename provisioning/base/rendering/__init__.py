"""Renderings of reports: pure functions from reports to text."""
