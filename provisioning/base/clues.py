"""What a text must have in it for a pattern to match, so that one pass tells which of thousands may."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise

from provisioning.base.patterns import BadPattern, Clue, Pattern, with_any_quotes

TOKEN = re.compile(
    r"(?P<text>[^\\\[\](){}.*+?|^$]+)|(?P<flags>\(\?[a-zA-Z-]+\))|(?P<group>\((?:\?(?:[a-zA-Z-]*:|P?<\w+>))?)"
    r"|(?P<place>[\^$]|\\[bBAz])|(?P<any>\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\\[dDsSwWnrtfv]"
    r"|\\x(?:[0-9a-fA-F]{2}|\{[^}]*\})|\\[pP](?:\w|\{[^}]*\}))"
    r"|(?P<sign>\\[^a-zA-Z0-9]|[\]{}])",
    re.DOTALL,
)
REPEATED = re.compile(r"([*+?]|\{(?P<least>\d+)(?:,\d*)?\})\??")
WORD = re.compile(r"[a-z0-9]+")
BLANKS = re.compile(r"[ \t\n\f\r]+")
MOST_WAYS = 24
"""What of a pattern has more alternatives than these is left out of its ways."""
SHORTEST_ANCHOR, LONGEST_ANCHOR = 8, 16
PART = 4
"""A literal is counted where so many of its letters stand, which is quicker than going through the text."""
RARE, VERY_RARE = 30, 3
"""What comes no more often in known failures is looked for by itself: words, and a word alone."""

Way = tuple[str, ...]
"""Literals in their order, in which a blank is any white space. All are in a text where the pattern matches
this way; the first may be empty, and the last: then something else is before or behind the others."""
SOMETHING: list[Way] = [("", "")]


@dataclass
class Ways:
    ways: list[Way]
    """Those in which a pattern can match."""
    beside: list[list[Way]]
    """What was left out of them: of each of these is one in the text too."""
    far: bool
    """Whether a match can have any number of lines."""


def ways_of(source: str) -> Ways:
    # Bytes of a text in small letters are those of ASCII alone.
    source = "".join(
        letter if letter.isascii() or letter.upper() == letter.lower() else "." for letter in source
    )
    reader = _Reader(source)
    ways = reader.alternatives()
    if reader.at != len(source):
        raise BadPattern(f"{source}: not understood at {source[reader.at :]}")
    return Ways(ways, reader.beside, reader.far)


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.far = False
        self.beside = list[list[Way]]()
        self._depth = 0

    def alternatives(self) -> list[Way]:
        ways = dict.fromkeys(self._sequence())
        while self.source.startswith("|", self.at):
            self.at += 1
            # What was left out is in one of the alternatives alone.
            self._depth, self.beside = self._depth + 1, [] if not self._depth else self.beside
            ways |= dict.fromkeys(self._sequence())
            self._depth -= 1
        return list(ways)

    def _joined(self, ways: list[Way], others: list[Way]) -> list[Way]:
        if min(len(ways), len(others)) > 1 and len(ways) * len(others) > MOST_WAYS:
            self.beside += [others] if not self._depth else []
            others = SOMETHING
        both = ((*way[:-1], way[-1] + other[0], *other[1:]) for way in ways for other in others)
        return list(dict.fromkeys(both))

    def _sequence(self) -> list[Way]:
        ways: list[Way] = [("",)]
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            token = TOKEN.match(self.source, self.at)
            if not token:
                raise BadPattern(f"{self.source}: not understood at {self.source[self.at :]}")
            start, kind, text, self.at = self.at, token.lastgroup, token[0], token.end()
            inner = self._group(text) if kind == "group" else SOMETHING
            repeated = REPEATED.match(self.source, self.at)
            if kind == "group" and repeated and repeated[1] != "?":
                self.far |= LINE_END.search(self.source, start, self.at) is not None
            self.at = repeated.end() if repeated else self.at
            if kind == "flags":
                self.far |= "s" in text
            if kind in ("flags", "place"):
                continue
            if kind == "any" and repeated:
                self.far |= _crosses_lines(text)
            if kind in ("text", "sign"):
                text = text[-1] if kind == "sign" else text
                ways = self._joined(ways, [(text[:-1] if repeated else text,)])
                inner = [(text[-1],)] if repeated else [("",)]
            if repeated and repeated[0] in ("?", "??"):
                inner = [("",), *inner]
            elif repeated:
                least = int(repeated["least"] or repeated[0].startswith("+"))
                inner = [("", *way, "") for way in _times(inner, least)] if least else SOMETHING
            ways = self._joined(ways, inner)
        return ways

    def _group(self, opening: str) -> list[Way]:
        self.far |= "s" in opening.partition(":")[0] and "<" not in opening
        self._depth += 1
        ways = self.alternatives()
        self._depth -= 1
        if not self.source.startswith(")", self.at):
            raise BadPattern(f"{self.source}: expected ) at {self.source[self.at :]}")
        self.at += 1
        return ways


def _times(ways: list[Way], least: int) -> list[Way]:
    """What is in a text in which one of the ways comes after another, at least so many."""
    if len(ways) == 1 and len(ways[0]) == 1:
        return [(ways[0][0] * min(least, LONGEST_ANCHOR),)]
    return ways


LINE_END = re.compile(r"\\[DWPnsx]| |\[:|\[\^(?![^\]]*\\[ns])")
"""What can stand for the end of a line in a group: if the group is repeated, a match can have many lines."""


def _crosses_lines(some: str) -> bool:
    """Whether what it stands for can be the end of a line, and more than white space."""
    if some.startswith("[^"):
        return r"\n" not in some and r"\s" not in some
    return any(part in some for part in (r"\D", r"\W", r"\P", r"\n", r"\s", r"\x", "[:")) and some != r"\s"


@dataclass(frozen=True, slots=True)
class Sample:
    """How often words come in a text of many failures."""

    text: str
    words: Counter[str]
    pairs: Counter[tuple[str, str]]
    places: dict[str, list[int]]
    """Where each PART of the text stands."""
    counted: dict[str, int]
    """Literals, which many patterns share."""
    beginnings: dict[str, str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Sample:
        text = "\n".join(" ".join(text.lower().split()) for text in texts)
        words = WORD.findall(text)
        places = defaultdict[str, list[int]](list)
        for place in range(len(text) - PART + 1):
            places[text[place : place + PART]].append(place)
        return cls(text, Counter(words), Counter(pairwise(words)), dict(places), {}, {})

    def often(self, literal: str) -> int:
        if literal not in self.counted:
            words = WORD.findall(literal)
            often = min((self.pairs[pair] for pair in pairwise(words)), default=0)
            self.counted[literal] = often or self.counted_in_text(literal)
        return self.counted[literal]

    def counted_in_text(self, literal: str, most: int | None = None) -> int:
        """How often it comes; no further than one more than `most`."""
        if len(literal) < PART:
            return self.text.count(literal)
        parts = [(self.places.get(literal[at : at + PART], []), at) for at in range(len(literal) - PART + 1)]
        places, at = min(parts, key=lambda part: len(part[0]))
        found = (place for place in places if place >= at and self.text.startswith(literal, place - at))
        return sum(1 for _ in islice(found, None if most is None else most + 1))

    def beginning(self, anchor: str) -> str:
        """The shortest that is about as seldom: an index of those is made in half of the time."""
        if anchor not in self.beginnings:
            self.beginnings[anchor] = self._beginning(anchor)
        return self.beginnings[anchor]

    def _beginning(self, anchor: str) -> str:
        if len(anchor) <= SHORTEST_ANCHOR:
            return anchor
        most = 2 * self.counted_in_text(anchor)
        for end in range(SHORTEST_ANCHOR, len(anchor)):
            beginning = anchor[:end]
            if len(beginning) - beginning.rfind(" ") > 3 and self.counted_in_text(beginning, most) <= most:
                return beginning
        return anchor


def clue_of(pattern: Pattern, sample: Sample) -> Clue:
    try:
        read = ways_of(with_any_quotes(pattern.source))
    except BadPattern:
        # It is looked for in every text.
        return Clue(far=True)
    # A text has one way of each of these in it: it is looked for by those that are seldom in others.
    choices = [_known_by(ways, sample) for ways in (read.ways, *read.beside) if all(map(_words, ways))]
    if not choices:
        return Clue(far=read.far)
    often = [sum(sample.often(rare) for rare, *_ in known) for known in choices]
    rarest = choices.pop(often.index(min(often)))
    beside = tuple(tuple(tuple(words) for _, *words in known) for known in choices)
    return Clue(rarest, read.far, beside if any(rare in words for rare, *words in rarest) else ())


def _known_by(ways: list[Way], sample: Sample) -> tuple[tuple[str, ...], ...]:
    """Of each way what is rare of it and its words, those first that it is surely near."""

    def rarest_first(word: str) -> tuple[bool, int, int, str]:
        return (len(word.encode()) < 3, sample.words[word], -len(word), word)

    known = dict[tuple[str, ...], None]()
    for way in ways:
        words, anchor = sorted(_words(way), key=rarest_first), _anchor(way, sample)
        words.sort(key=lambda word: word not in anchor)
        # Of what is a word by itself the others are asked too.
        rare = anchor if anchor in words else sample.beginning(anchor)
        looked_for = (rare or words[0], *words)
        known[looked_for] = None
    return tuple(known)


def _words(way: Way) -> list[str]:
    words = {word.lower() for literal in way for word in literal.split()}
    words = {word for word in words if len(word.encode()) > 2} or words
    return sorted(words, key=lambda word: (-len(word), word))


def _anchor(way: Way, sample: Sample) -> str:
    """What of a way is seldom in a log where the pattern does not match; empty if nothing is."""
    literals = {BLANKS.sub(" ", literal.lower())[:LONGEST_ANCHOR].strip(" ") for literal in way}
    for literal in sorted(literals, key=lambda text: (-len(WORD.findall(text)), -len(text), text)):
        most = VERY_RARE if literal.isalpha() else RARE
        telling = len(literal) >= (12 if literal.isalpha() else 6)
        if telling and sample.often(literal) <= most:
            return literal
    return ""
