"""The elements of the page. They form a tree, so text can never become markup."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element

from provisioning.base.rendering.text import one_line, plural, visible


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    mark: float | None
    """The baseline or the threshold."""
    text: str
    good: bool


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """`class_` and `data_key` stand for class and data-key."""
    parent = Element(tag, {name.rstrip("_").replace("_", "-"): visible(v) for name, v in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
            last = child
        elif last is None:
            parent.text = (parent.text or "") + visible(child)
        else:
            last.tail = (last.tail or "") + visible(child)
    return parent


def badge(word: str, symbol: str = "") -> Element:
    return element("span", f"{symbol} {word}".strip(), class_=f"badge {word.replace(' ', '-')}")


def tick(good: bool) -> Element:
    return badge("pass", "✓") if good else badge("fail", "✗")


def verdicts(count: int, bad: int) -> Element:
    """How many programs there are, and how many failed."""
    summary = f"{plural(count, 'program')}, {f'{bad} failed' if bad else 'all passed'}"
    return element("p", summary, class_="soft")


def table(
    identity: str,
    caption: str,
    heads: Sequence[Element],
    rows: Iterable[Element],
    kind: str = "stack",
) -> Element:
    inside = (element("caption", caption), element("thead", *heads), element("tbody", *rows))
    return element("div", element("table", *inside, id=identity, class_=kind), class_="scroll")


def sortable(
    identity: str, caption: str, columns: Sequence[tuple[str, str]], rows: Iterable[Element]
) -> Element:
    """A table whose columns, of a name and a class each, can be sorted."""
    head = element("tr", *(element("th", name, scope="col", **_class(kind)) for name, kind in columns))
    return table(identity, caption, [head], rows, "sortable stack")


def _class(kind: str) -> dict[str, str]:
    return {"class_": kind} if kind else {}


def number_cell(text: str, key: float, label: str) -> Element:
    return element("td", text, class_="number", data_key=f"{key:.6f}", data_label=label)


def short_cell(text: str, label: str) -> Element:
    return element("td", text, class_="short", data_label=label)


def path(text: str) -> Element:
    """A path that may break only after slashes and dots."""
    code = element("code")
    for piece in re.split(r"(?<=[/.])(?=\w)", one_line(text)):
        if len(code) or code.text:
            code.append(element("wbr"))
            code[-1].tail = piece
        else:
            code.text = piece
    return code


def file_link(file: str, folder: Path | None, *shown: Element | str) -> Element | None:
    """A relative link from a page in `folder` to a file below it; None for a file elsewhere."""
    if folder is None:
        return None
    relative = os.path.relpath(Path(file).absolute(), folder.absolute())
    return None if relative.startswith("..") else element("a", *shown, href=quote(relative, errors="replace"))


def drawing(kind: str, label: str) -> Element:
    """A picture of 100 by 20, which is stretched to its place."""
    return element(
        "svg", class_=kind, viewBox="0 0 100 20", preserveAspectRatio="none", role="img", aria_label=label
    )


def one_line_code(text: str) -> Element:
    return element("code", one_line(text))


def bars(title: str, shown: Iterable[Bar], *, one_scale: bool = False) -> list[Element]:
    """With `one_scale` all bars have the same scale; otherwise each is only comparable with its own mark."""
    drawn = list(shown)
    longest = max((_longest(each) for each in drawn), default=0.0)
    rows = [_bar(each, longest if one_scale else _longest(each)) for each in drawn]
    return [element("h3", title), element("div", *rows, class_="bars")] if rows else []


def _longest(bar: Bar) -> float:
    return max(bar.value, bar.mark or 0, 1e-12)


def _bar(bar: Bar, longest: float) -> Element:
    picture = drawn_bar(bar.text, bar.value, longest, "good" if bar.good else "bad", [(bar.mark, 0.6)])
    return element(
        "div", element("span", bar.name), picture, element("span", bar.text, class_="figure"), class_="row"
    )


def drawn_bar(
    label: str, value: float, longest: float, kind: str, marks: Sequence[tuple[float | None, float]] = ()
) -> Element:
    """A bar beside one that is as long as `longest`, with marks of a value and a width each."""
    picture, unit = drawing("bar", label), 100 / (longest * 1.05)
    length = max(0.5, unit * max(value, 0))
    picture.append(element("rect", width=f"{length:.2f}", height="20", class_=kind))
    for place, width in marks:
        if place is not None:
            x = f"{max(0.0, unit * place):.2f}"
            picture.append(element("rect", x=x, width=f"{width:g}", height="20", class_="mark"))
    return picture
