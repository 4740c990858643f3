"""`site`: build docs/ as a website by mkdocs, as mkdocs.yml says; and the hooks that it names."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT, dist_path, project

EXAMPLES = """\
  nox -s lab -- site
"""

OUTSIDE = re.compile(r"\]\(\.\./(?!docs/)")
"""A link from docs/ to another file of the repository."""


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from mkdocs.__main__ import cli

    folder = dist_path() / "site"
    command = [
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
        "--site-dir",
        str(folder),
    ]
    try:
        cli(command, standalone_mode=False)
    except SystemExit as error:
        raise CheckFailed("mkdocs refuses the pages, as printed above", fix=session("lab", "site")) from error
    sys.stdout.write(f"wrote {folder / 'index.html'}\n")
    return 0


def on_files(files: Any, config: Any) -> Any:
    """The README is the first page. Its links are of the repository's top."""
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|docs/|#)", "](../", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(f"]({project().repository}/blob/main/", markdown)
