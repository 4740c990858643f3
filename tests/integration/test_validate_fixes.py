"""What `validate` prints as a fix is typed into a shell, without a network: its rule is quiet afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest

from provisioning.base.findings import Finding
from provisioning.base.selection import selection_of
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun
from provisioning.validation import catalogue, check
from provisioning.validation.context import gather
from provisioning.verbs import validate
from tests.support.rule_fixes import ROWS, Row, Site, store_with
from tests.support.sdk import provisioned_sdk
from tests.support.typed import parsed

pytestmark = [pytest.mark.heavy, pytest.mark.needs("clang++", "ld.lld")]

DROPPED = {"LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "QNN_SDK_ROOT", "GITHUB_ACTIONS", "QNN_CI_PROFILE", "CI"}
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
SHELL = """\
python() { "$PYTHON" "$@"; }
nox() { verb=$2; shift 2; [ "$1" != -- ] || shift; python -m provisioning "$verb" "$@"; }
set -e
"""
"""A session of provisioning takes the words of its verb; nox itself is tried in test_noxfile.py."""


def typed_of(row: Row) -> tuple[str, str, tuple[str, ...]]:
    return row.types, row.instead, row.provisioned


TYPED = {words: [*rows] for words, rows in groupby(sorted(ROWS, key=typed_of), key=typed_of)}
"""The rows by what is typed: it is typed once for all of them."""


def findings(rules: Iterable[str], site: Site, environ: dict[str, str]) -> dict[str, list[Finding]]:
    """Of each rule alone what it finds."""
    selection = selection_of(parsed(validate, *site.flags), environ)
    chosen = {rule: catalogue()[rule] for rule in rules}
    asks_compiler = any(rule.asks_compiler for rule in chosen.values())
    contexts = gather(selection, environ, asks_compiler=asks_compiler)
    printed = {}
    for rule, row in chosen.items():
        stage = StageRun(
            "validate", selection.profile, selection.target, "", [*check(contexts, [row])[0].findings]
        )
        printed[rule] = [*stage.finish().findings]
    return printed


def site_of(provisioned: tuple[str, ...], tmp_path: Path) -> Site:
    tree = store_with(provisioned_sdk(*provisioned), tmp_path / "store")
    environ = {name: value for name, value in os.environ.items() if name not in DROPPED} | OFFLINE
    ours = {"STORE": tmp_path / "store", "REPORTS": tmp_path / "reports"}
    environ |= {f"QNN_CI_{name}": str(path) for name, path in ours.items()}
    return Site(tree, tmp_path, {**environ, "PYTHON": sys.executable})


@pytest.mark.long("types each printed fix, some of which provision")
@pytest.mark.parametrize("words", TYPED, ids=lambda words: words[0])
def test_a_printed_fix_makes_its_rules_quiet(words: tuple[str, str, tuple[str, ...]], tmp_path: Path) -> None:
    rows = TYPED[words]
    *texts, provisioned = words
    site = site_of(provisioned, tmp_path)
    for row in rows:
        row.spoil(site)
    found = findings((row.rule for row in rows), site, site.environ)
    types, instead = (text.format(folder=site.folder, lib=site.environ.get("lib")) for text in texts)
    for row in rows:
        assert any(types in finding.fix for finding in found[row.rule]), (row.rule, types, found[row.rule])
    script = f"{SHELL}{instead or types}\nexec env -0\n"
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, env=site.environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    after = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if "=" in line)
    assert {rule: left for rule, left in findings(found, site, after).items() if left} == {}
