"""What agents get: `qnn-ci mcp`, and SKILL.md, both from one table (tools.py)."""
