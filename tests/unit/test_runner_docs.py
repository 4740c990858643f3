"""The runner's page says what its source says."""

from __future__ import annotations

import re

from provisioning.base.settings import ROOT

SOURCE = ROOT / "ci" / "builds" / "runner" / "src"
PAGE = (ROOT / "docs" / "runner.md").read_text(encoding="utf-8")


def test_the_page_lists_every_exit_code() -> None:
    numbers = dict(
        re.findall(r"^  (\w+) = (\d+),", (SOURCE / "exit_code.h").read_text(encoding="utf-8"), re.MULTILINE)
    )
    meanings = re.findall(
        r'\{ExitCode::(\w+), "(.*)"\}', (SOURCE / "exit_code.cpp").read_text(encoding="utf-8")
    )

    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)

    assert rows == [(numbers[name], meaning) for name, meaning in meanings]
    assert len(rows) == len(numbers)


def test_the_page_names_every_flag() -> None:
    flags = re.findall(
        r'^      \{"(\w+)", ', (SOURCE / "flags.cpp").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert len(flags) > 20
    assert [flag for flag in flags if f"--{flag}" not in PAGE] == []
