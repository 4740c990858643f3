"""The files of the site, all of them in memory: a link that leads nowhere is found before one is written."""

from __future__ import annotations

import datetime as dt
import html
import json
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ci.github.release import NAME
from ci.operators.table import MEANINGS, OperatorTable, shipped
from ci.pipeline.phones import load_forecasts
from ci.site import errors, operators, phones, repairs, trained
from ci.site.markdown import Document, Link, groups, inline, rendered
from provisioning.base.commands import captured
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import replace_bytes
from provisioning.base.project import project
from provisioning.base.rendering.pages import fill
from provisioning.base.settings import DEFAULT_SOC, ROOT
from provisioning.base.site import ERRORS, FAULTS
from provisioning.known_faults import load_faults

TEMPLATES = Path(__file__).with_name("templates")
REPORT = ROOT / "ci" / "report" / "templates"
"""Style and script of the report's page, which the site has too."""

START, PHONES = "start.html", "phones.html"
REPAIRS, TRAINED = "repairs.html", "trained.html"
OPERATORS, INDEX = f"operators/on-{DEFAULT_SOC}.html", "search.js"
INDEX_HEAD = "window.searchIndex = "
"""A script, since a page that is opened as a file may not fetch JSON."""

PLACES = {
    "README.md": START,
    "docs/operators.md": OPERATORS,
    "docs/findings.md": FAULTS,
    "docs/rules.md": ERRORS,
}
"""Where a page of the repository is on the site, if not under its own name."""

FROM_DATA = tuple(name for name in PLACES if name.startswith("docs/"))
PICTURES = (".svg", ".png")
LARGEST_SOURCE = 400_000
"""A longer file is shown as it is, without a page around it."""


@dataclass
class Site:
    """What was made so far, by its path."""

    files: dict[str, str | bytes] = field(default_factory=dict)
    found: list[tuple[str, str, str, str]] = field(default_factory=list)
    """For the search: kind, title, place, words."""
    sources: dict[str, str] = field(default_factory=dict)
    """Files of the repository that pages link to, and the first page that does."""
    common: Mapping[str, Any] = field(default_factory=dict)

    def page(self, path: str, template: str, title: str, **values: Any) -> None:
        root = "../" * path.count("/")
        self.files[path] = fill(
            TEMPLATES / template, title=title, path=path, root=root, **self.common, **values
        )

    def link(self, target: str, source: str, path: str) -> str:
        """A link in a page of the repository, as the page of the site at `path` has it."""
        if re.match(r"[a-z]+:|#", target):
            return target
        file, mark, anchor = target.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(file)))
        return relative(self.place(name, source), path) + mark + anchor

    def links(self, source: str, path: str) -> Link:
        return lambda target: self.link(target, source, path)

    def place(self, name: str, source: str) -> str:
        if name in PLACES:
            return PLACES[name]
        if name.endswith(PICTURES):
            self.files[name] = (ROOT / name).read_bytes()
            return name
        if not (ROOT / name).is_file():
            raise CheckFailed(f"{source} links to {name}, which is no file", fix=f"correct it in {source}")
        if re.fullmatch(r"docs/[\w-]+\.md|[A-Z]+\.md", name):
            return name.removesuffix(".md").lower() + ".html"
        self.sources.setdefault(name, source)
        return f"source/{name}" + ("" if (ROOT / name).stat().st_size > LARGEST_SOURCE else ".html")


def relative(place: str, path: str) -> str:
    return quote(posixpath.relpath(place, posixpath.dirname(path) or "."))


def build() -> Mapping[str, str | bytes]:
    """All files of the site. Raises CheckFailed if a link leads nowhere."""
    site = Site(common=common())
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("[A-Z]*.md"))]
    }
    documents = dict[str, tuple[str, Document]]()
    for name, text in texts.items():
        if name not in FROM_DATA:
            path = site.place(name, name)
            documents[name] = path, rendered(text, site.links(name, path))
    site.common = {**site.common, "groups": _navigation(site, texts["README.md"])}
    for path, document in documents.values():
        site.page(path, "page.html.j2", document.title, document=document)
        site.found += [
            (
                "page",
                f"{document.title}: {section.title}" if number else section.title,
                f"{path}#{section.anchor}",
                section.text,
            )
            for number, section in enumerate(document.sections)
        ]
    table = shipped()
    _operators(site, table, texts["docs/operators.md"].partition("\n## How to read a cell\n")[2])
    add_errors(site)
    _faults(site, texts["docs/findings.md"])
    wheel = load_forecasts().wheel.version
    shown = {"phones": phones.phones(), "ways": phones.WAYS}
    site.page(PHONES, "phones.html.j2", "Forecasts and phones", **shown, wheel=wheel)
    _repairs(site)
    _trained(site)
    _sources(site)
    _home(site, table, texts["README.md"])
    site.files["llms.txt"] = _for_language_models(site, documents)
    site.files[INDEX] = f"{INDEX_HEAD}{json.dumps(site.found, separators=(',', ':'))};\n"
    site.files["icon.svg"] = (TEMPLATES / "icon.svg").read_bytes()
    for name, suffix in (("style", "css"), ("site", "js")):
        own = (REPORT / f"page.{suffix}", TEMPLATES / f"site.{suffix}")
        site.files[f"{name}.{suffix}"] = "\n".join(path.read_text(encoding="utf-8") for path in own)
    check(site.files)
    return site.files


def common() -> dict[str, Any]:
    done = captured(["git", "log", "-1", "--format=%h %ct"], cwd=ROOT, encoding="utf-8")
    commit, _, seconds = done.stdout.strip().partition(" ")
    day = dt.datetime.fromtimestamp(int(seconds), dt.timezone.utc).date() if seconds else ""
    return {
        "name": NAME,
        "version": project(ROOT).version,
        "commit": commit,
        "day": str(day),
        "places": {
            "operators": OPERATORS,
            "errors": ERRORS,
            "faults": FAULTS,
            "phones": PHONES,
            "repairs": REPAIRS,
            "trained": TRAINED,
            "start": START,
        },
        "groups": {},
        "inline": inline,
    }


def _navigation(site: Site, readme: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    found = groups(readme, "All pages")
    return {
        about: [(site.place(posixpath.normpath(target), "README.md"), words) for target, words in links]
        for about, links in found.items()
    }


def _operators(site: Site, table: OperatorTable, introduction: str) -> None:
    views = list(operators.views(table))
    words = {name: {"word": word, "meaning": meaning} for name, (word, meaning) in MEANINGS.items()}
    for view in views:
        site.page(
            view.page,
            "operators.html.j2",
            f"Operators through {view.lane}, {view.place}",
            view=view,
            views=views,
            lanes=operators.lanes(table),
            results=operators.RESULTS,
            words=words,
            counted=operators.counted(view),
            chips=operators.chip_names(),
            introduction=rendered(introduction, site.links("docs/operators.md", view.page)).body,
        )
    for lane in operators.lanes(table):
        site.files[posixpath.join(posixpath.dirname(lane.home), "index.html")] = site.files[lane.home]
    for page in operators.pages(table):
        path = page.lane.page(page.name)
        site.page(path, "operator.html.j2", page.name, page=page, chips=operators.chip_names())
        good = f"all is well on {DEFAULT_SOC} at {page.good or 'no precision'}"
        site.found.append((f"operator, {page.lane.name}", page.name, path, good))
    cells = operators.rows(table)
    site.files["operators.csv"] = operators.as_csv(cells)
    site.files["operators.json"] = operators.as_json(table, cells)


def add_errors(site: Site) -> None:
    failures, numbers, rules = errors.failures(), errors.numbers(), errors.all_rules()
    for page, whose in errors.PROGRAMS.items():
        of_page = [failure for failure in failures if failure.page == page]
        sources = {failure.source: site.link(failure.source, "README.md", page) for failure in of_page}
        site.page(page, "failures.html.j2", f"Errors of {whose}", failures=of_page, sources=sources)
    site.page(
        ERRORS,
        "errors.html.j2",
        "Errors",
        failures=failures,
        numbers=numbers,
        rules=rules,
        sources={rule.page: site.link(rule.page, "README.md", ERRORS) for rule in rules},
        programs=errors.PROGRAMS,
    )
    site.files["errors.json"] = errors.as_json()
    site.found += [
        (
            "error",
            failure.id,
            f"{failure.page}#{failure.anchor}",
            f"{failure.message} {failure.cause} {failure.fix}",
        )
        for failure in failures
    ]
    site.found += [
        (f"number, {number.of}", " ".join(number.spellings), f"{ERRORS}#{number.anchor}", number.name)
        for number in numbers
    ]
    site.found += [
        ("rule", rule.id, f"{ERRORS}#{quote(rule.id)}", f"{rule.summary}: {rule.fix.installed}")
        for rule in rules
    ]


def _faults(site: Site, findings: str) -> None:
    table = shipped()
    pages = {name: lane.page(name) for lane in reversed(operators.lanes(table)) for name in lane.cells}
    faults = load_faults()
    rest = findings[findings.index("\n## ExecuTorch's own tests") :]
    site.page(
        FAULTS,
        "faults.html.j2",
        "Known faults",
        faults=faults,
        pages=pages,
        sources={fault.source: site.link(fault.source, "README.md", FAULTS) for fault in faults},
        rest=rendered(rest, site.links("docs/findings.md", FAULTS)),
    )
    site.files["faults.json"] = (
        json.dumps({"schema": 1, "faults": [fault.model_dump(mode="json") for fault in faults]}, indent=1)
        + "\n"
    )
    site.found += [
        (
            "fault",
            fault.title.replace("`", ""),
            f"{FAULTS}#{fault.id}",
            f"{fault.id} {fault.effect} {fault.fix}",
        )
        for fault in faults
    ]


def _repairs(site: Site) -> None:
    suites = {
        name: site.link(f"manifests/suites/{name}.toml", "README.md", REPAIRS) for name in repairs.SHOWN
    }
    site.page(
        REPAIRS,
        "repairs.html.j2",
        "Repairs",
        rows=repairs.rows(),
        tuned=repairs.tuned(),
        others=repairs.others(),
        words=repairs.words_of_rewrites(),
        suites=suites,
        about=site.link("docs/accuracy.md#repair", "README.md", REPAIRS),
        tuning=site.link("docs/accuracy.md#tune", "README.md", REPAIRS),
    )


def _trained(site: Site) -> None:
    models = trained.models()
    builds = sorted({run.build for model in models for run in model.runs} - {""})
    site.page(TRAINED, "trained.html.j2", "Trained models", models=models, builds=builds)
    site.found += [
        ("trained model", model.name, f"{TRAINED}#{model.name}", f"{model.metric} {model.wheel.package}")
        for model in models
    ]


def _sources(site: Site) -> None:
    for name in site.sources:
        content = (ROOT / name).read_bytes()
        if len(content) > LARGEST_SOURCE:
            site.files[f"source/{name}"] = content
        elif name.endswith(".md"):
            path = f"source/{name}.html"
            document = rendered(content.decode(), site.links(name, path))
            site.page(path, "page.html.j2", document.title, document=document)
        else:
            site.page(f"source/{name}.html", "source.html.j2", name, text=content.decode())


def _home(site: Site, table: OperatorTable, readme: str) -> None:
    both = operators.lanes(table)
    first_screen = readme.partition("```console\n")[2].partition("```")[0].splitlines()
    site.page(
        "index.html",
        "home.html.j2",
        "QNN, ExecuTorch and ONNX Runtime: what works on HTP",
        lanes=both,
        typed=[line for line in first_screen if line.startswith("$ ")],
        failures=len(errors.failures()),
        rules=len(errors.all_rules()),
        numbers=len(errors.numbers()),
        faults=len(load_faults()),
        measured=sorted({text for lane in both for text in lane.measured.values()}),
    )


def _for_language_models(site: Site, documents: Mapping[str, tuple[str, Document]]) -> str:
    lines = [
        f"# {NAME} {site.common['version']}",
        "",
        "> CI for ExecuTorch on Qualcomm's NPUs: which operators work on HTP, what errors of QNN mean, which "
        "faults builds have. Measured on the emulator; made from one commit.",
        "",
        "## Data",
        "",
        "- [operators.json](operators.json): every operator by lane, chip and scheme, as measured",
        "- [operators.csv](operators.csv): the same as a table",
        "- [errors.json](errors.json): known failures with cause and fix, numbers, rules of findings",
        "- [faults.json](faults.json): known faults with versions, the command that shows each, and its fix",
        "",
        "## Known",
        "",
        f"- [Operators]({OPERATORS}): operators/NAME.html is one's page, operators/onnx/NAME.html ONNX's",
        f"- [Errors]({ERRORS}): one anchor for each",
        f"- [Known faults]({FAULTS})",
        f"- [Forecasts and phones]({PHONES})",
        f"- [Repairs]({REPAIRS}): common models before and after, and why what is not green is not",
        f"- [Trained models]({TRAINED}): a metric of the task in float, quantized and on HTP",
        "",
        "## Pages",
        "",
    ]
    lines += [f"- [{document.title}]({path}): {document.summary}" for path, document in documents.values()]
    return "\n".join(lines) + "\n"


_LINK = re.compile(r'\b(?:href|src)="([^"]*)"')
_ANCHOR = re.compile(r'\bid="([^"]*)"')
_MARKDOWN_LINK = re.compile(r"\]\(([^)]+)\)")


def check(files: Mapping[str, str | bytes]) -> None:
    """Every link within the site leads to a file and an anchor."""
    anchors = {
        name: {html.unescape(match) for match in _ANCHOR.findall(text)}
        for name, text in files.items()
        if isinstance(text, str) and name.endswith(".html")
    }
    broken = [
        f"{name} links to {target}, which is not there"
        for name, text in files.items()
        for target in dict.fromkeys(_links(name, text))
        if not _leads(name, target, files, anchors)
    ]
    if broken:
        more = f" (and {len(broken) - 1} more)" if broken[1:] else ""
        raise CheckFailed(f"{broken[0]}{more}", fix="correct the link in the page that it was made from")


def _links(name: str, text: str | bytes) -> Iterator[str]:
    if isinstance(text, str) and name.endswith(".html"):
        yield from map(html.unescape, _LINK.findall(text))
    elif name == "llms.txt":
        yield from _MARKDOWN_LINK.findall(str(text))


def _leads(name: str, target: str, files: Mapping[str, str | bytes], anchors: Mapping[str, set[str]]) -> bool:
    if re.match(r"https?:|mailto:", target):
        return True
    file, _, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(file))) if file else name
    return place in files and (not anchor or "=" in anchor or unquote(anchor) in anchors.get(place, ()))


def write(files: Mapping[str, str | bytes], folder: Path) -> None:
    """In place of an earlier site."""
    index = folder / INDEX
    ours = index.is_file() and index.read_bytes().startswith(INDEX_HEAD.encode())
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise UsageError(f"{folder} has files and is no site", fix="name another with -o")
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        replace_bytes(folder / name, content.encode() if isinstance(content, str) else content)
