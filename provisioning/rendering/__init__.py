"""Renderings of reports: pure functions from reports to text."""

from __future__ import annotations

from provisioning.rendering.code_scanning import RuleText, sarif
from provisioning.rendering.job_summary import markdown
from provisioning.rendering.junit_xml import junit
from provisioning.rendering.terminal import console, show
from provisioning.rendering.workflow_commands import github_annotations

__all__ = ["RuleText", "console", "github_annotations", "junit", "markdown", "sarif", "show"]
