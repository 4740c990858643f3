"""Renderings of reports: pure functions from reports to text."""

from __future__ import annotations

from provisioning.base.rendering.code_scanning import RuleText, code_quality, sarif
from provisioning.base.rendering.job_summary import markdown
from provisioning.base.rendering.junit_xml import junit
from provisioning.base.rendering.terminal import console, show
from provisioning.base.rendering.workflow_commands import github_annotations

__all__ = ["RuleText", "code_quality", "console", "github_annotations", "junit", "markdown", "sarif", "show"]
