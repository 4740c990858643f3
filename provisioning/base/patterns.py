"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol, cast

REACH = 2 << 10
"""So many bytes before and after a part of a match is the rest of it, to the ends of lines."""
FOLDED = ("\u017f".encode(), "\u212a".encode())
"""The long s and the sign of kelvin, which RE2 takes for s and k."""
REMEMBERED = 1 << 14
FEW = 12
"""After so many places of a word all of a text is near it."""
Span = tuple[int, int]
BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[xpP]\{|\\[pP]\w")
"""What of a pattern may name other characters."""
BLANK = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*\])| (?![?*+{])")
"""A blank of a pattern that stands for itself, not one in brackets."""


class BadPattern(ValueError):
    """RE2 does not take it, as what needs look-ahead or a back-reference."""


class Match(Protocol):
    def start(self, group: int = 0) -> int: ...

    def end(self) -> int: ...

    def groups(self) -> tuple[bytes | None, ...]: ...


@dataclass(frozen=True, eq=False)
class Pattern:
    """`^` and `$` are those of a line, and a blank is any white space, so that a wrapped line matches too.
    Text is bytes, which need not be UTF-8."""

    source: str
    any_case: bool = False

    @property
    def expression(self) -> str:
        flexible = BLANK.sub(lambda found: found[1] or r"\s+", self.source)
        return f"(?{'mi' if self.any_case else 'm'}){flexible}"

    @cached_property
    def compiled(self) -> Any:
        """Raises BadPattern."""
        return self._compiled(_options())

    @cached_property
    def compiled_for_ascii(self) -> Any:
        """The same for text in which each character is a byte: made in two thirds of the time."""
        if BEYOND_ASCII.search(self.source):
            return self.compiled
        return self._compiled(_options(latin=True))

    def _compiled(self, options: Any) -> Any:
        import re2

        try:
            return re2.compile(self.expression.encode(), options)
        except re2.error as error:
            (reason,) = error.args
            raise BadPattern(reason.decode() if isinstance(reason, bytes) else reason) from error

    def _for(self, text: bytes) -> Any:
        return self.compiled_for_ascii if _is_ascii(text) else self.compiled

    def search(self, text: bytes, start: int = 0, end: int | None = None) -> Match | None:
        return cast("Match | None", self._for(text).search(text, start, end))

    def find_all(self, text: bytes, start: int = 0) -> Iterator[Match]:
        return cast("Iterator[Match]", self._for(text).finditer(text, start))


@lru_cache(maxsize=2)
def _is_ascii(text: bytes) -> bool:
    """Thousands of patterns ask it of one text."""
    return text.isascii()


@cache
def _options(*, latin: bool = False) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    if latin:
        options.encoding = re2.Options.Encoding.LATIN1
    return options


def _options_of_index(*, literal: bool) -> Any:
    """Memory is only taken as it is needed; with too little of it each pass takes many times as long."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    options.never_capture = True
    options.literal = literal
    options.longest_match = not literal
    options.max_mem = 64 << 20
    return options


@dataclass(frozen=True, slots=True)
class Clue:
    """What a text must have in it for a pattern to match."""

    anchored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By each way to match what is rare in other texts, and words near it."""
    ways: tuple[tuple[str, ...], ...] = ()
    """Of the ways without such an anchor the words, the rarest first."""
    far: bool = False
    """Whether the words may stand any number of lines apart."""
    beside: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """Of each of these a text has the words of one way too, if it is known by words."""


def table_of(clues: Sequence[Clue]) -> dict[str, Any]:
    """What an index of patterns is made of, as JSON has it. Patterns and words are named by their places."""
    anchors: dict[str, list[Any]] = defaultdict(list)
    ways: dict[str, list[Any]] = defaultdict(list)
    always = list[int]()
    for pattern, clue in enumerate(clues):
        known = list(clue.ways)
        for anchor, words in clue.anchored:
            if clue.far and " " not in anchor:
                # Where it is does not matter.
                known.append((anchor, *words))
            else:
                anchors[anchor].append((pattern, exact(words)))
        for way in known:
            if way:
                ways[way[0]].append((pattern, way))
            else:
                always.append(pattern)
    others = (word for rows in ways.values() for _, way in rows for word in way)
    beside = (word for clue in clues for groups in clue.beside for group in groups for word in group)
    places = {word: place for place, word in enumerate(dict.fromkeys((*ways, *others, *beside)))}
    return {
        "anchors": anchors,
        "words": list(places),
        "ways": [
            [(pattern, [places[word] for word in way], exact(way)) for pattern, way in rows]
            for rows in ways.values()
        ],
        "beside": [
            [[[places[word] for word in group] for group in groups] for groups in clue.beside]
            for clue in clues
        ],
        "far": [pattern for pattern, clue in enumerate(clues) if clue.far],
        "always": always,
    }


def exact(words: Iterable[str]) -> list[str]:
    """Those whose letters are of ASCII, or have no case: a text in small letters has them as they are."""
    return [word for word in words if word.isascii() or word.upper() == word.lower()]


class Index:
    """Which of many patterns may be in a text, and where: one pass over it looks for what is rare, one for
    words."""

    def __init__(self, patterns: Sequence[Pattern], table: Mapping[str, Any]) -> None:
        import re2

        self._patterns = patterns
        self._anchored = table["anchors"]
        self._of_text: dict[bytes, list[Any]] = {}
        self._words = re2.Set.SearchSet(_options_of_index(literal=True))
        for word in table["words"]:
            self._words.Add(word)
        self._words.Compile()
        self._ways = table["ways"]
        self._first = [b"".join(word.encode() for word in exact([word])) for word in table["words"]]
        """Empty, if a text in small letters may have other ones."""
        self._beside = table["beside"]
        self._far = set(table["far"])
        self._always = table["always"]

    def _any_anchor(self, *, folded: bool) -> Any:
        """In lowered text it is made in half the time."""
        import re2

        options = _options_of_index(literal=False)
        if not folded:
            options.case_sensitive = True
            options.encoding = re2.Options.Encoding.LATIN1
        # Sorted, so that RE2 makes one of their beginnings: it is slow with thousands otherwise.
        anchors = (re2.escape(anchor).replace(r"\ ", r"\s+").encode() for anchor in sorted(self._anchored))
        return re2.compile(b"|".join(anchors), options)

    @cached_property
    def _anchors(self) -> Any:
        return self._any_anchor(folded=False)

    @cached_property
    def _anchors_folded(self) -> Any:
        return self._any_anchor(folded=True)

    def possible(self, text: bytes, done: Set[Pattern] = frozenset()) -> dict[Pattern, list[Span]]:
        """Where each pattern can match that can, but for those that nobody looks for any more."""
        whole = [(0, len(text))]
        spans = dict.fromkeys([self._patterns[pattern] for pattern in self._always], whole)
        lowered = text.lower()
        # The two are not in lowered text.
        folded = not lowered.isascii() and any(letter in text for letter in FOLDED)

        def add(number: int, words: list[str], near: list[Span]) -> None:
            """One way of a pattern, whose anchor is near these places."""
            pattern = self._patterns[number]
            if spans.get(pattern) is whole:
                return
            if number in self._far or folded:
                spans[pattern] = whole
                return
            needed = [word.encode() for word in words]
            for low, high in near:
                for word in needed:
                    if lowered.find(word, low, high) < 0:
                        break
                else:
                    spans.setdefault(pattern, []).append((low, high))

        present = set(self._words.Match(text) or ()) if self._ways else set[int]()
        for first in present:
            if first >= len(self._ways):
                continue
            near: list[Span] | None = None
            for number, places, words in self._ways[first]:
                if (
                    self._patterns[number] not in done
                    and present.issuperset(places)
                    and all(any(map(present.issuperset, groups)) for groups in self._beside[number])
                ):
                    if near is None and number not in self._far and self._first[first]:
                        near = _groups(lowered, self._first[first])
                    add(number, words, whole if near is None else near)
        for found, hits in self._hits(text if folded else lowered, folded=folded).items():
            near = None
            for number, words in self._of(found):
                if self._patterns[number] not in done:
                    near = _joined(text, hits) if near is None else near
                    add(number, words, near)
        return spans

    def _hits(self, text: bytes, *, folded: bool) -> dict[bytes, list[Span]]:
        """Where each anchor is."""
        hits: dict[bytes, list[Span]] = defaultdict(list)
        anchors = self._anchors_folded if folded else self._anchors
        hit = anchors.search(text) if self._anchored else None
        while hit:
            start, end = hit.span()
            hits[text[start:end]].append((start, end))
            hit = anchors.search(text, start + 1)
        return hits

    def _of(self, found: bytes) -> list[Any]:
        """What has this anchor, or one that it begins with."""
        if found not in self._of_text:
            if len(self._of_text) > REMEMBERED:
                self._of_text.clear()
            anchor = str(b" ".join(found.split()), "utf-8", "replace").casefold()
            beginnings = (anchor[:length] for length in range(1, len(anchor) + 1))
            self._of_text[found] = [row for text in beginnings for row in self._anchored.get(text, ())]
        return self._of_text[found]


def _groups(lowered: bytes, word: bytes) -> list[Span]:
    """The lines within reach of a word: all, if it comes often."""
    places, start = list[Span](), lowered.find(word)
    while start >= 0:
        if len(places) == FEW:
            return [(0, len(lowered))]
        places.append((start, start + len(word)))
        start = lowered.find(word, start + 1)
    return _joined(lowered, places)


def _joined(text: bytes, places: list[Span]) -> list[Span]:
    """The lines within reach of places, each line once."""
    groups = list[Span]()
    for start, end in places:
        if groups and end + REACH <= groups[-1][1]:
            # The same line ends it.
            continue
        low, high = _near(text, start, end)
        groups.append((groups.pop()[0] if groups and groups[-1][1] >= low else low, high))
    return groups


def _near(text: bytes, start: int, end: int) -> Span:
    """The lines within reach."""
    high = text.find(b"\n", end + REACH)
    return text.rfind(b"\n", 0, max(0, start - REACH)) + 1, high if high >= 0 else len(text)
