"""Committed files agree with each other and with the code: schemas, generated files, and links of pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from lab.generate import stale
from lab.lint import tracked_files
from provisioning.base.settings import MANIFESTS, ROOT
from tests.support.schemas import validator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def fits(file: Path, text: str) -> bool:
    """Whether a manifest's text fits the schema that its first line names."""
    first = text.splitlines()[0]
    path = (file.parent / first.removeprefix("#:schema ")).resolve()
    return bool(validator(path).is_valid(tomllib.loads(text)))


def test_each_manifest_fits_the_schema_that_it_names() -> None:
    naming = [
        file
        for file in [*MANIFESTS.rglob("*.toml"), *(ROOT / "lab/suites").glob("*.toml")]
        if file.read_text().startswith("#:schema ")
    ]
    assert {"wheels.toml", "socs.toml", "environments.toml", "models.toml"} <= {path.name for path in naming}
    assert [file for file in naming if not fits(file, file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("profiles/wheels.toml", "schema = 1", 'schema = 1\ncolour = "red"'),
        ("suites/models.toml", 'precision = "16a8w"', 'precision = "16a9w"'),
        ("suites/lpai.toml", "{ sqnr_db = ", "{ sqnr_db = -"),
    ],
)
def test_a_schema_refuses_what_loading_refuses(file: str, right: str, wrong: str) -> None:
    path = MANIFESTS / file
    text = path.read_text(encoding="utf-8")
    assert right in text and not fits(path, text.replace(right, wrong, 1))


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"></a>', text))


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
                dead.append(f"{page.name}: {link}")
    assert not dead, "\n".join(dead)


@pytest.mark.parametrize("skill", [*ROOT.glob("skills/*/SKILL.md")], ids=lambda skill: skill.parent.name)
def test_a_skill_says_its_name_and_when_to_use_it(skill: Path) -> None:
    _, head, _ = skill.read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == skill.parent.name and "Use" in about["description"]


def test_contributing_names_files_that_exist() -> None:
    """By their paths, or by the ends of these; capitals stand for any name."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    words = {word for code in re.findall(r"`([^`\n]+)`", text) for word in code.split()}
    paths = {
        re.sub(r"{.*}", part, word) for word in words for part in re.sub(r".*{|}.*", "", word).split(",")
    }
    files = "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in tracked_files(ROOT))
    named = re.compile(r"[a-z_0-9/.-]+\.(?:py|toml|md|yml|j2)")
    assert not [path for path in paths if named.fullmatch(path) and f"/{path}\n" not in files]


def test_the_committed_files_are_fresh() -> None:
    assert list(stale()) == []


def test_a_changed_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "manifests/schema").mkdir(parents=True)
    (tmp_path / "manifests/schema/socs.json").write_text("{}")
    assert list(stale(["manifests/schema/socs.json"], tmp_path)) == ["manifests/schema/socs.json"]
    assert list(stale(["docs/checks.md"], tmp_path)) == ["docs/checks.md"]
