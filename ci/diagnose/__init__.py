"""Failures explained from logs and numbers."""
