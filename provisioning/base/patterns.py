"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol, cast

REACH = 2 << 10
"""So many bytes before and after a part of a match is the rest of it, to the ends of lines."""
FOLDED = ("\u017f".encode(), "\u212a".encode())
"""The long s and the sign of kelvin, which RE2 takes for s and k."""
REMEMBERED = 1 << 14
FEW = 12
"""After so many places the whole text is searched."""
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
    """Without a rare anchor: the words of each way, the rarest first."""
    far: bool = False
    """Whether the words may stand any number of lines apart."""
    beside: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """Of each of these a text has the words of one way too, if it is known by words."""


@dataclass(frozen=True, slots=True)
class _Way:
    pattern: Pattern
    far: bool
    words: list[bytes]
    """Those whose letters are of ASCII, or have no case."""


class Index:
    """Which of many patterns may be in a text, and where: one pass over it looks for what is rare, one for
    words."""

    def __init__(self, clues: Mapping[Pattern, Clue]) -> None:
        import re2

        self.done = set[Pattern]()
        """What nobody looks for any more."""
        self._anchored: dict[str, list[_Way]] = defaultdict(list)
        ways: dict[str, list[tuple[_Way, tuple[str, ...]]]] = defaultdict(list)
        self._always = list[Pattern]()
        for pattern, clue in clues.items():
            for anchor, words in clue.anchored:
                self._anchored[anchor].append(_Way(pattern, clue.far, _as_bytes(words)))
            for words in clue.ways:
                if words:
                    ways[words[0]].append((_Way(pattern, clue.far, _as_bytes(words)), words[1:]))
                else:
                    self._always.append(pattern)
        # Sorted, so that RE2 makes one of their beginnings: it is slow with thousands otherwise.
        anchors = "|".join(re.escape(anchor).replace(r"\ ", r"\s+") for anchor in sorted(self._anchored))
        self._anchors = re2.compile(anchors, _options_of_index(literal=False)) if anchors else None
        self._of_text: dict[bytes, list[_Way]] = {}
        others = dict.fromkeys(word for rows in ways.values() for _, words in rows for word in words)
        others |= dict.fromkeys(
            word
            for clue in clues.values()
            for ways_beside in clue.beside
            for words in ways_beside
            for word in words
        )
        numbers = {word: number for number, word in enumerate({**dict.fromkeys(ways), **others})}
        self._words = re2.Set.SearchSet(_options_of_index(literal=True))
        for word in numbers:
            self._words.Add(word)
        self._words.Compile()
        self._ways = {
            numbers[first]: [(way, {numbers[word] for word in words}) for way, words in rows]
            for first, rows in ways.items()
        }

        self._beside = {
            pattern: [
                [{numbers[word] for word in words} for words in ways_beside] for ways_beside in clue.beside
            ]
            for pattern, clue in clues.items()
            if clue.beside
        }

    def possible(self, text: bytes) -> dict[Pattern, list[Span]]:
        """Where each pattern can match that can."""
        whole = [(0, len(text))]
        spans = dict.fromkeys(self._always, whole)
        lowered = text.lower()
        # The two are not in lowered text.
        folded = not lowered.isascii() and any(letter in text for letter in FOLDED)
        present = set(self._words.Match(text) or ()) if self._ways else set[int]()
        for first in present & self._ways.keys():
            for way, others in self._ways[first]:
                if way.pattern in self.done or spans.get(way.pattern) is whole or not others <= present:
                    continue
                beside = self._beside.get(way.pattern, ())
                if not all(any(words <= present for words in ways_beside) for ways_beside in beside):
                    continue
                places = None if way.far or folded else _places(lowered, way.words)
                if places is None:
                    spans[way.pattern] = whole
                elif places:
                    spans[way.pattern] = [*spans.get(way.pattern, ()), *places]
        if self._anchors:
            self._add_anchored(self._anchors, text, lowered, spans, folded=folded)
        return spans

    def _add_anchored(
        self, anchors: Any, text: bytes, lowered: bytes, spans: dict[Pattern, list[Span]], *, folded: bool
    ) -> None:
        hit, tried = anchors.search(text), Counter[Pattern]()
        while hit:
            start, end = hit.start(), hit.end()
            near = (0, 0)
            for way in self._of(text[start:end]):
                if way.pattern in self.done:
                    continue
                before = spans.get(way.pattern)
                if before and before[-1][1] == len(text):
                    continue
                near = near if near[1] else _near(text, start, end)
                low, high = (0, len(text)) if way.far else near
                if before and before[-1][1] >= low:
                    before[-1] = (before[-1][0], high)
                elif folded or all(lowered.find(word, low, high) >= 0 for word in way.words):
                    spans.setdefault(way.pattern, []).append((low, high))
                else:
                    tried[way.pattern] += 1
                    if tried[way.pattern] > FEW:
                        spans[way.pattern] = [(0, len(text))]
            hit = anchors.search(text, start + 1)

    def _of(self, found: bytes) -> list[_Way]:
        """What has this anchor, or one that it begins with."""
        if found not in self._of_text:
            if len(self._of_text) > REMEMBERED:
                self._of_text.clear()
            anchor = str(b" ".join(found.split()), "utf-8", "replace").casefold()
            beginnings = (anchor[:length] for length in range(1, len(anchor) + 1))
            self._of_text[found] = [row for text in beginnings for row in self._anchored.get(text, ())]
        return self._of_text[found]


def _as_bytes(words: Iterable[str]) -> list[bytes]:
    return [word.encode() for word in words if word.isascii() or word.upper() == word.lower()]


def _places(lowered: bytes, words: list[bytes]) -> list[Span] | None:
    """Where all words are near the first of them; None if that is nearly everywhere."""
    if not words:
        return None
    places, first = list[Span](), words[0]
    at = lowered.find(first)
    for _ in range(FEW):
        if at < 0:
            return places
        low, high = _near(lowered, at, at + len(first))
        if all(lowered.find(word, low, high) >= 0 for word in words[1:]):
            if places and places[-1][1] >= low:
                low = places.pop()[0]
            places.append((low, high))
        at = lowered.find(first, at + 1)
    return None


def _near(text: bytes, start: int, end: int) -> Span:
    """The lines within reach."""
    high = text.find(b"\n", end + REACH)
    return text.rfind(b"\n", 0, max(0, start - REACH)) + 1, high if high >= 0 else len(text)
