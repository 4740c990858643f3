"""Renderings of reports: pure functions from reports to text."""

from __future__ import annotations

from provisioning.rendering.console import console, show
from provisioning.rendering.github import github_annotations
from provisioning.rendering.junit import junit
from provisioning.rendering.markdown import markdown
from provisioning.rendering.sarif import RuleText, sarif

__all__ = ["RuleText", "console", "github_annotations", "junit", "markdown", "sarif", "show"]
