"""A pattern is looked for wherever it can match, by what each match has in it."""

from __future__ import annotations

import random
import re

import pytest

from provisioning.base import diagnosis
from provisioning.base.clues import Sample, clue_of
from provisioning.base.patterns import FEW, LITTLE, REACH, Index, Pattern, table_of
from tests.support.pattern_texts import inner, parsed, text_of

LINE = b"nothing is the matter here\n"
FILLER = LINE * (REACH // len(LINE) + 2)
"""More than is searched around a place."""


def index_of(*sources: str) -> tuple[Index, list[Pattern]]:
    patterns = [Pattern(source, any_case=True) for source in sources]
    sample = Sample.of(["a text"])
    return Index(patterns, table_of([clue_of(pattern, sample) for pattern in patterns])), patterns


def found(source: str, text: bytes) -> bool:
    """Whether the index gives the place of the first match, in the first text and behind many others."""
    index, (pattern,) = index_of(source)
    match = pattern.search(text)
    assert match, f"{source} does not match at all"
    first = index.possible(text).get(pattern, [])
    index.possible(b"-" * LITTLE)
    assert index.possible(text).get(pattern, []) == first
    return any(low <= match.start() and match.end() <= high for low, high in first)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("could not open the device", b"Could NOT\n   open the\r\ndevice"),
        ("qnn_open failed", b"fourteen qnn_open \t failed"),
        ("error (?:code )?(?:403|404)", b"Error 404"),
        ("error (?:code )?(?:403|404)", b"ERROR CODE 403"),
        (r"colou?r_of_it", b"color_of_it"),
        (r"fail(?:ed|ure)+ to_load", b"failureed to_load"),
        (r"ab{2,}cdefghijkl", b"abbbcdefghijkl"),
        (r"x{0}yz_yz_yz", b"yz_yz_yz"),
        (r"only [ab]!{4,}", b"only a!!!!!"),
        (r"(?:more_of){2,3}_it", b"more_ofmore_of_it"),
        (r"(?:less|more){2}_of_it", b"lessmore_of_it"),
        (r"(?i)\bRC\b", b"rc"),
        (r"[ab]\d", b"b7"),
        (r"\x22quoted_word\x22", b'"quoted_word"'),
        (r"\pLeft_of_it", "\u00e9eft_of_it".encode()),
        ("kelvin_sensor", "\u212aelvin_\u017fensor".encode()),
        ("kelvins? (?:sensor|probe)", "\u212aelvin\u017f probe".encode()),
        ("größe_der_datei", "große größe_der_datei".encode()),
        ("内存(?:泄漏|增长)", "内存增长".encode()),
        (r"begin_of_it[\s\S]*end_of_it", b"begin_of_it\n" + FILLER + b"end_of_it"),
        (r"begin[^x]*\bend\b", b"begin\n" + FILLER + b"end"),
        *(
            (f"begin_of_it{between}end_of_it", b"begin_of_it\n" + FILLER + b"end_of_it")
            for between in (
                r"(?:.*\n)+",
                r"(?:\n.*)*",
                r"(?:.|\n)*",
                r"(?:[^x])*",
                r"\s(?:\S+\s+)*",
                r" (?:\w+ )*",
                r"(?:[^\n]*\n){1,500}",
                r"\PN+",
                r"[\x00-\x7f]+",
                r"[[:^digit:]]+",
                r"[[:space:]a-z]+",
            )
        ),
        ("a{1000}|some_words_here", b"some_words_here"),
        ("no module named 'torch_of_it'", b"No module named torch_of_it"),
        ("no module named 'torch_of_it'", b"No module named torch_of_it."),
        ("no module named 'torch_of_it'", b'No module named "torch_of_it".more'),
        (r"'\w+' object has no attribute '(?:one|two)'", b"`str` object has no attribute two"),
        (r"cannot open file '[^'\n]*\.bc'", b'cannot open file "/a/b.bc"'),
        (r"option '-[\w-]+' is unknown", b"option -m64 is unknown"),
        (r"type 'tensor\(\w+\)' of it", b"type tensor(int64) of it"),
        ("can't open `it_is_here`", b"can't open 'it_is_here'"),
    ],
)
def test_a_match_is_where_the_index_says(source: str, text: bytes) -> None:
    assert found(source, text)
    assert found(source, FILLER + text + b"\n" + FILLER)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("no module named 'torch'", b"no module named torch.fx"),
        ("no module named 'torch'", b"no module named torch/fx"),
        ("no module named 'torch'", b"no module named torchao"),
        ("'load' failed", b"upload failed"),
        ("'load' failed", b"load_it failed"),
        ("can't open", b"can open t"),
        (r"\x22device_lost\x22", b"'device_lost'"),
        (r"[']device_lost", b'"device_lost'),
        (r"it is '[^']*' failed", b"it is here failed"),
        (r"it is '.{2,6}' failed", b"it is here failed"),
        ('it has failed: "', b"it has failed: now"),
    ],
)
def test_what_only_looks_like_a_quoted_word_does_not_match(source: str, text: bytes) -> None:
    pattern = Pattern(source, any_case=True)
    assert pattern.search(text) is None and pattern.search(text + b" \xe2\x80\xa6") is None


def test_words_that_overlap_and_begin_each_other_are_all_found() -> None:
    index, patterns = index_of("load_the_model", "load_the_model_now", "model_now_please", "the_model_now")
    assert set(index.possible(b"x load_the_model_now_please")) == set(patterns)


def test_what_comes_nearly_everywhere_is_found_too() -> None:
    text = b"npu load\n" * (FEW * 2) + FILLER + b"npu is not used"
    index, (pattern,) = index_of(r"\b(?:npu|htp) (?:\w+ )?(?:is|was) (?:not|never) (?:used|called)")
    assert any(high == len(text) for _, high in index.possible(text)[pattern])


def test_what_is_not_in_a_text_is_not_looked_for() -> None:
    index, _ = index_of("could not open the device", "error (?:403|404)", "qnn_open failed")
    assert index.possible(b"could open the device, error 405, qnn_closed failed") == {}


def test_what_nobody_looks_for_any_more_is_left_out() -> None:
    index, (first, second) = index_of("could not open the device", "qnn_open failed")
    assert set(index.possible(b"could not open the device: qnn_open failed", {first})) == {second}


def test_a_pattern_is_looked_for_by_the_rarest_of_what_it_needs() -> None:
    seldom = "|".join(f"odd{number}" for number in range(30))
    pattern = Pattern(rf"(?:output|answer)[^\n]*(?:{seldom})", any_case=True)
    clue = clue_of(pattern, Sample.of(["output and answer"]))
    text = b"the output is here\n" * FEW * 9
    last = text + FILLER + b"the answer is odd7\n" + FILLER + text
    spans = Index([pattern], table_of([clue])).possible(last)[pattern]
    assert sum(high - low for low, high in spans) < 3 * REACH


@pytest.mark.parametrize(
    ("literal", "times"),
    [
        ("opened", 2),
        ("device_z", 1),
        ("abcdefgh", 0),
        ("ice_n", 1),
        ("the devi", 1),
        ("x5", 1),
        ("opens", 0),
        ("node in", 0),
    ],
)
def test_how_often_a_literal_comes_is_counted_in_words_and_across_them(literal: str, times: int) -> None:
    assert (
        Sample.of(["Reopened  the device_node x5", "opened device_z", "abcdef cdefgh"]).often(literal)
        == times
    )


def test_all_words_of_one_of_the_alternatives_are_needed() -> None:
    pairs = "|".join(f"beta{number} gamma{number}" for number in range(30))
    index, (pattern,) = index_of(rf"(?:alpha|omega)\d*(?:{pairs})")
    assert index.possible(b"alpha1 beta2 gamma3") == {}
    assert pattern in index.possible(b"alpha7beta2 gamma2")


def test_all_places_of_what_a_pattern_is_known_by_are_looked_at() -> None:
    known_by = b"could_not_open_it\n"
    index, (pattern,) = index_of("could_not_open_it now")
    text = known_by * 2 + FILLER + known_by + FILLER + b"could_not_open_it now\n" + FILLER
    match = pattern.search(text)
    spans = index.possible(text)[pattern]
    assert match and any(low <= match.start() and match.end() <= high for low, high in spans)
    assert sum(high - low for low, high in spans) < len(text)


def test_letters_beyond_ascii_are_found_in_either_case() -> None:
    text = "größenangabe\n".encode() + FILLER + "GRÖßENANGABE falsch".encode() + b"\n" + FILLER
    assert found("größenangabe falsch", text)


def test_a_text_is_matched_alike_beside_characters_beyond_ascii() -> None:
    for source in (r"a\W+b[^x]?c", r"k\x{2026}?l", r"gr(?:ö|oe)\w*e", r"(?i)\pLsome"):
        pattern = Pattern(source, any_case=True)
        for text in (b"A -b-C", b"KL", b"groesse", b"xsome", b"nothing"):
            plain, beyond = pattern.search(text), pattern.search(text + " …".encode())
            assert (plain and plain.start()) == (beyond and beyond.start())


EVERY = [pytest.param(1, marks=pytest.mark.whole), 10]
"""The whole table, or a tenth of it."""


@pytest.mark.parametrize("every", EVERY)
def test_every_match_of_the_table_in_its_examples_is_where_the_index_says(every: int) -> None:
    known = diagnosis.knowledge()
    chosen = known.entries[::every]
    wrong = list[str]()
    for entry in chosen:
        # Wrapped, so that a match goes over lines.
        text = b"\n".join([FILLER, entry.example.encode().replace(b" ", b"\n "), FILLER])
        spans = known.index.possible(text)
        for pattern in entry.looked_for:
            match = pattern.search(text)
            if match and not any(a <= match.start() and match.end() <= b for a, b in spans.get(pattern, ())):
                wrong.append(f"{entry.id}: {pattern.source}")
    assert chosen and wrong == []


@pytest.mark.parametrize("every", EVERY)
def test_each_pattern_of_the_table_matches_a_text_that_is_made_of_it_where_the_index_says(every: int) -> None:
    """Most patterns are in no example."""
    chosen = list(diagnosis.knowledge().entries_of)[::every]
    never = [pattern.source for pattern in chosen if not is_found(pattern)]
    assert chosen and never == []


def is_found(pattern: Pattern) -> bool:
    chosen, items = random.Random(pattern.source), parsed(pattern.source)
    texts = (text_of(items, chosen).encode() for _ in range(30))
    text = next((text for text in texts if pattern.search(text)), b"")
    text = FILLER + text + b"\n" + FILLER
    match = pattern.search(text)
    spans = diagnosis.knowledge().index.possible(text).get(pattern, []) if match else []
    return any(match and low <= match.start() and match.end() <= high for low, high in spans)


@pytest.mark.parametrize("source", [r"opened\b_now", "failed ^here", r"failed\Bto \bopen"])
def test_a_pattern_that_can_match_nothing_is_not_found(source: str) -> None:
    assert not is_found(Pattern(source))


WRITTEN_OTHERWISE = {
    "two backslashes, where one is meant": r"\\\\[dswDSWbB.](?![a-z])|\[[^\]]*\\\\[dsw]",
    "an alternative without text": r"(?<!\\)(?:\(\?:\||\|\||\|\)|\|$)",
    "two blanks": "  ",
    "an or in brackets": r"(?<!\\)\[[^\]\\]*\w\|\w[^\]]*\]",
}
SIGN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]")


def doubts(source: str) -> list[str]:
    """What of a pattern is surely meant otherwise."""
    found = [what for what, written in WRITTEN_OTHERWISE.items() if re.search(written, source)]
    if re.search(r"\((?!\?)", SIGN.sub("", source)):
        found.append("a group that nobody reads, or brackets of the text")
    for items in inner(parsed(source)):
        names = [f"{name} {argument}" if str(name) == "AT" else str(name) for name, argument in items]
        found += ["a beginning inside"] * ("AT AT_BEGINNING" in names[1:])
        found += ["an end inside"] * ("AT AT_END" in names[:-1])
        for name, argument in items:
            ways = [repr(list(way)) for way in argument[1]] if str(name) == "BRANCH" else []
            found += ["an alternative twice"] * (len(set(ways)) < len(ways))
    return found


@pytest.mark.parametrize(
    "source",
    [
        r"C:\\\w+ failed",
        r"failed [\\w.]+",
        r"failed \\d+",
        "(?:load|) failed",
        "load|open|",
        "failed (code 3)",
        "load  failed",
        "[load|open] failed",
        "failed ^here",
        "failed$ here",
        "(?:load|open|load) failed",
    ],
)
def test_what_is_surely_meant_otherwise_is_doubted(source: str) -> None:
    assert doubts(source)


def test_no_pattern_of_the_table_is_surely_meant_otherwise() -> None:
    entries = diagnosis.knowledge().entries
    sources = {
        (entry.id, pattern.source)
        for entry in entries
        for pattern in (*entry.looked_for, *entry.unless_here, entry.unless_line)
        if pattern
    }
    assert sources and [(*row, doubted) for row in sorted(sources) if (doubted := doubts(row[1]))] == []
    assert [entry.id for entry in entries if len({*entry.keys}) < len(entry.keys)] == []
