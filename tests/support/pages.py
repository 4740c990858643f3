"""What a browser makes of a page of ours."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder

VOID = frozenset({"meta", "input", "wbr"})


def read_page(page: str) -> Element:
    """The page's elements as a tree; each is closed where it must be."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader.builder.close()


def text_of(element: Element) -> str:
    """What is seen of it."""
    inside = "" if element.tag in ("style", "script") else element.text or ""
    return inside + "".join(text_of(child) + (child.tail or "") for child in element)


def structure_of(page: Element) -> list[tuple[str, list[str], str | None]]:
    """Elements with the names of their attributes and their class; where lines may break does not count."""
    return [
        (element.tag, sorted(element.keys()), element.get("class"))
        for element in page.iter()
        if element.tag != "wbr"
    ]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.builder = TreeBuilder()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        self.open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.builder.data(data)
