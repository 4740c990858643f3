"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol, cast

REACH = 2 << 10
"""So many bytes before and after a part of a match is the rest of it, to the ends of lines."""
FOLDED = {"\u017f".encode(): b"s", "\u212a".encode(): b"k"}
"""The long s and the sign of kelvin, as which RE2 takes s and k."""
REMEMBERED = 1 << 14
LITTLE = 16 << 10
"""In texts of together so many bytes words are found sooner one by one than a set of all is made."""
FEW = 12
"""A word with more places than these tells no place."""
Span = tuple[int, int]
BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[xpP]\{|\\[pP]\w")
"""What of a pattern may name other characters."""
BLANK = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*\])| (?![?*+{])")
"""A blank of a pattern that stands for itself, not one in brackets."""
QUOTES = "\"'`"
PARTS = re.compile(
    r"\\.|\[\^?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\]|(?:[?*+]|\{\d+(?:,\d*)?\})\??|\((?:\?[\w-]*:)?|.", re.DOTALL
)
"""What a pattern is made of, as far as a quote beside it asks."""
REPEAT = re.compile(r"[?*+{].*", re.DOTALL)
GROUP = re.compile(r"\(.*")
WORD = re.compile(r"\w|\\[wd]")
ANYTHING = re.compile(r"\.|\[\^.*")
"""Beside what could be anything the quotes alone tell where it ends."""
NOTHING = re.compile(r"(?:[\s|()^$]|\\[sbn])?")
"""A quote between two of these stands for itself."""


def with_any_quotes(source: str) -> str:
    """The same pattern for text that has other quotes, or none around a name: people change them in titles of
    issues. What is escaped or in brackets remains."""
    if not any(quote in source for quote in QUOTES):
        return source
    parts = PARTS.findall(source)
    begun = [part for part in parts if not GROUP.fullmatch(part)]
    made, before = list[str](), ""
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        if not GROUP.fullmatch(part):
            begun.pop(0)
        quote = part in QUOTES and not REPEAT.fullmatch(after)
        made.append(_any_quote(before, begun[0] if begun else "", after) if quote else part)
        if part != ")" and not REPEAT.fullmatch(part):
            before = part
    return "".join(made)


def _any_quote(before: str, following: str, after: str) -> str:
    """What a quote becomes between these parts of a pattern; `after` may open or close a group."""
    word, next_word = WORD.fullmatch(before), WORD.fullmatch(following)
    if next_word:
        return rf"[{QUOTES}]*\b"
    if word and not after:
        # Without its quote a word at the end is no part of a longer name.
        return rf"\b(?:[{QUOTES}]|[^\w./-]|\.?\s|\.?$)"
    if word:
        return rf"\b[{QUOTES}]*"
    sides = (before, following)
    needed = any(map(ANYTHING.fullmatch, sides)) or all(map(NOTHING.fullmatch, sides))
    return f"[{QUOTES}]" if needed else f"[{QUOTES}]*"


class BadPattern(ValueError):
    """RE2 does not take it, as what needs look-ahead or a back-reference."""


class Match(Protocol):
    def start(self, group: int = 0) -> int: ...

    def end(self) -> int: ...

    def groups(self) -> tuple[bytes | None, ...]: ...


@dataclass(frozen=True, eq=False)
class Pattern:
    """`^` and `$` are those of a line, a blank is any white space, so that a wrapped line matches too, and a
    quote any quote. Text is bytes, which need not be UTF-8."""

    source: str
    any_case: bool = False

    @property
    def expression(self) -> str:
        flexible = BLANK.sub(lambda found: found[1] or r"\s+", with_any_quotes(self.source))
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

    def forget(self) -> None:
        """Frees what was compiled, which grows with the text that is searched. It is made anew if needed."""
        self.__dict__.pop("compiled", None)
        self.__dict__.pop("compiled_for_ascii", None)

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

    def find_all(self, text: bytes, start: int = 0, end: int | None = None) -> Iterator[Match]:
        return cast("Iterator[Match]", self._for(text).finditer(text, start, end))


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


@dataclass(frozen=True, slots=True)
class Clue:
    """What a text must have in it for a pattern to match, in small letters; beyond ASCII without case."""

    ways: tuple[tuple[str, ...], ...] = ()
    """Of each way to match what is rare in other texts, and its words: the first that tells a place is looked
    for. Without ways the pattern is looked for in every text."""
    far: bool = False
    """Whether the words may stand any number of lines apart."""
    beside: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """Of each of these a text has the words of one way too."""


def table_of(clues: Sequence[Clue]) -> dict[str, Any]:
    """What an index of patterns is made of, as JSON has it. Patterns and literals are named by places."""
    rows: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    for pattern, clue in enumerate(clues):
        for rare, *words in clue.ways:
            rows[rare].append((pattern, words))
    # Of what is rare and more than a word, the words are looked for near it alone.
    needed = (word for rare, ways in rows.items() for _, words in ways if rare in words for word in words)
    beside = (word for clue in clues for ways in clue.beside for words in ways for word in words)
    looked_for = dict.fromkeys((*rows, *needed, *beside))
    others = (word for ways in rows.values() for _, words in ways for word in words)
    places = {literal: place for place, literal in enumerate(dict.fromkeys((*looked_for, *others)))}
    return {
        "literals": list(places),
        "looked_for": len(looked_for),
        # Few of them are read, so each is a text by itself.
        "rows": [
            json.dumps(
                [(pattern, [places[word] for word in words], rare in words) for pattern, words in ways]
            )
            for rare, ways in rows.items()
        ],
        "beside": {
            pattern: [[[places[word] for word in words] for words in ways] for ways in clue.beside]
            for pattern, clue in enumerate(clues)
            if clue.beside
        },
        "far": [pattern for pattern, clue in enumerate(clues) if clue.far],
        "always": [pattern for pattern, clue in enumerate(clues) if not clue.ways],
    }


class Index:
    """Which of many patterns may be in a text, and where: one pass over it tells what they need of it."""

    def __init__(self, patterns: Sequence[Pattern], table: Mapping[str, Any]) -> None:
        self._patterns = patterns
        self._literals = [literal.encode() for literal in table["literals"]]
        self._looked_for = table["looked_for"]
        self._rows = table["rows"]
        self._beside = {int(pattern): ways for pattern, ways in table["beside"].items()}
        self._far = set(table["far"])
        self._always = table["always"]
        self._read = dict[int, list[tuple[int, list[int], bool]]]()
        self._searched = 0

    @cached_property
    def _set(self) -> Any:
        import re2

        options = re2.Options()
        options.log_errors = False
        options.encoding = re2.Options.Encoding.LATIN1
        # It is only taken as it is needed; with too little for all words each pass takes ten times as long.
        options.max_mem = 256 << 20
        made = re2.Set.SearchSet(options)
        for literal in self._literals[: self._looked_for]:
            made.Add(re2.escape(literal).replace(rb"\ ", rb"\s+"))
        made.Compile()
        return made

    def _present(self, lowered: bytes) -> set[int]:
        """The literals that are looked for and in a text, in which a blank is any white space."""
        self._searched += len(lowered)
        if self._searched > LITTLE:
            return set(self._set.Match(lowered) or ())
        one_blank = b" ".join(lowered.split())
        return {
            place for place, literal in enumerate(self._literals[: self._looked_for]) if literal in one_blank
        }

    def _ways(self, rare: int) -> list[tuple[int, list[int], bool]]:
        """Of each pattern that is looked for by this literal."""
        if rare not in self._read:
            self._read[rare] = json.loads(self._rows[rare]) if rare < len(self._rows) else []
        return self._read[rare]

    def possible(self, text: bytes, done: Set[Pattern] = frozenset()) -> dict[Pattern, list[Span]]:
        """Where each pattern can match that can, but for those that nobody looks for any more."""
        whole = [(0, len(text))]
        spans = dict.fromkeys([self._patterns[pattern] for pattern in self._always], whole)
        lowered = text.lower()
        folded = not lowered.isascii() and any(letter in lowered for letter in FOLDED)
        for letter, small in FOLDED.items() if folded else ():
            lowered = lowered.replace(letter, small)
        present = self._present(lowered)
        groups = dict[int, list[Span] | None]()

        def near(words: list[int]) -> list[Span]:
            for word in words:
                if word not in groups:
                    groups[word] = _groups(lowered, self._literals[word])
                if (group := groups[word]) is not None:
                    return group
            return whole

        for rare in present:
            for number, words, needed in self._ways(rare):
                pattern = self._patterns[number]
                if pattern in done or spans.get(pattern) is whole:
                    continue
                if needed and not present.issuperset(words):
                    continue
                beside = self._beside.get(number, ())
                if not all(any(map(present.issuperset, ways)) for ways in beside):
                    continue
                group = whole if folded or number in self._far else near(words)
                if group is whole:
                    spans[pattern] = whole
                    continue
                literals = [self._literals[word] for word in words]
                for low, high in group:
                    if all(lowered.find(literal, low, high) >= 0 for literal in literals):
                        spans.setdefault(pattern, []).append((low, high))
        return spans


def _groups(lowered: bytes, word: bytes) -> list[Span] | None:
    """The lines within reach of a word; none if it comes often."""
    places, start = list[Span](), lowered.find(word)
    while start >= 0:
        if len(places) == FEW:
            return None
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
