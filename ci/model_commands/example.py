"""`example`: write a small model and its suite, to try the commands on."""

from __future__ import annotations

import argparse
import sys

from provisioning.base.command_line import Parser
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS

EXAMPLES = """\
  qnn-ci example
"""

FILES = MANIFESTS / "example"
NEXT = ("net.py:scores", "--soc", "SM8750", "--precision", "fp16", "-o", "out")


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    folder = Parser.user_folder()
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in sorted(FILES.iterdir()) if path.is_file()
    }
    for name in texts:
        if (folder / name).exists():
            raise UsageError(f"{name} is already in this folder", fix="type it in an empty folder")
    for name, text in texts.items():
        replace_text(folder / name, text)
    sys.stdout.write(
        f"wrote {' and '.join(reversed(texts))}: a small model, and a suite that tests it\n"
        f"next:  {session('compile', *NEXT)}\n"
    )
    return 0
