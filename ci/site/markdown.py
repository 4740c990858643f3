"""A hand-written page: its HTML, its title and its sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markupsafe import Markup

Link = Callable[[str], str]
"""From a link as the page has it to one of the site."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    anchor: str
    level: int
    text: str
    """Its words, for the search."""


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    body: Markup
    sections: Sequence[Section]
    """The first has what stands before the first heading below the title."""

    @property
    def summary(self) -> str:
        """Its first sentences."""
        text = next((section.text for section in self.sections if section.text), "")
        return text if len(text) <= 200 else f"{text[:200].rpartition(' ')[0]} …"


def rendered(text: str, link: Link) -> Document:
    from markupsafe import Markup

    tokens = _parser().parse(text)
    sections = list(_sections(tokens))
    _anchor(tokens, sections)
    for token in tokens:
        if str(token.attrs.pop("style", "")).endswith("right"):  # the site's policy takes no style in a tag
            token.attrs["class"] = "right"
        for child in token.children or ():
            for name in ("href", "src"):
                if name in child.attrs:
                    child.attrs[name] = link(str(child.attrs[name]))
    title = next((section.title for section in sections if section.level == 1), "")
    return Document(title, Markup(_parser().renderer.render(tokens, _parser().options, {})), sections)


def groups(text: str, heading: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    """The rows of the table below a heading: what each is about, and its links as (target, words)."""
    tokens = _parser().parse(text.partition(f"\n## {heading}\n")[2])
    found: dict[str, list[tuple[str, str]]] = {}
    about = ""
    for token in tokens:
        if token.type == "table_close":
            break
        if token.type != "inline":
            continue
        children = token.children or []
        ends = [number for number, child in enumerate(children) if child.type == "link_close"]
        begins = [number for number, child in enumerate(children) if child.type == "link_open"]
        for begin, end in zip(begins, ends, strict=True):
            link = (str(children[begin].attrs["href"]), _words(children[begin:end]))
            found.setdefault(about, []).append(link)
        about = token.content
    return found


def inline(text: str) -> Markup:
    """A sentence in which `this` is code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # HTML in our own pages is our own.
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    parser.add_render_rule("table_open", _table)
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("fence", _fence)
    return parser


def _table(*_: object) -> str:
    return '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>\n'


def _fence(_renderer: object, tokens: Sequence[Token], number: int, *_: object) -> str:
    from markupsafe import escape

    lines = [
        f'<span class="typed">{escape(line)}</span>' if line.startswith("$ ") else str(escape(line))
        for line in tokens[number].content.splitlines()
    ]
    return f'<pre tabindex="0"><code>{chr(10).join(lines)}</code></pre>\n'


def _sections(tokens: Sequence[Token]) -> Iterator[Section]:
    title, anchor, level, words, known = "", "", 0, list[str](), dict[str, int]()
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            if level:
                yield Section(title, anchor, level, _one_line(words))
            title, level, words = _words(tokens[number + 1].children or []), int(token.tag[1]), []
            anchor = slug(title, known)
        elif token.type == "inline" and tokens[number - 1].type != "heading_open":
            words.append(_words(token.children or []))
        elif token.type in ("fence", "code_block"):
            words.append(token.content)
    if level:
        yield Section(title, anchor, level, _one_line(words))


def _anchor(tokens: Sequence[Token], sections: Sequence[Section]) -> None:
    from markdown_it.token import Token
    from markupsafe import escape

    rest = iter(sections)
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            section = next(rest)
            token.attrs["id"] = section.anchor
            if section.level > 1:
                mark = Token("html_inline", "", 0)
                label = escape(f"Link to {section.title}")
                mark.content = f' <a class="anchor" href="#{section.anchor}" aria-label="{label}">#</a>'
                tokens[number + 1].children = [*(tokens[number + 1].children or ()), mark]


def slug(title: str, known: dict[str, int]) -> str:
    """The anchor that GitHub gives a heading; the second of a name ends in -1."""
    name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    known[name] = known.get(name, -1) + 1
    return f"{name}-{known[name]}" if known[name] else name


def _words(tokens: Sequence[Token]) -> str:
    breaks = {"softbreak": " ", "hardbreak": " ", "html_inline": ""}
    return "".join(breaks.get(token.type, token.content) for token in tokens if token.type != "image")


def _one_line(words: Sequence[str]) -> str:
    return " ".join(" ".join(words).split())
