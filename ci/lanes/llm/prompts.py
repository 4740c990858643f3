"""Texts as tokens: a prompt as Genie gets it, with the chat template rendered and without the token that
begins a text; and what two texts have in common."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.beginning import in_a_line, load_tokenizer, transformers_tokenizer
from ci.lanes.llm.genie import NONE
from ci.lanes.llm.orders import GENIE, CompileOrder, ForcedText, JudgedText
from provisioning.base.commands import leave_out, quoted
from provisioning.base.errors import CheckFailed, UsageError

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
PREFIX = 20
TURN = 25
"""Tokens of a turn in the chats that a model is quantized and judged by."""
CHAT_SHARE, CHAT_PLACE = 4, 1
"""Of four windows or prefixes the second one: there may be two."""
CONTINUED = 2
"""Tokens that Genie says after a prefix: the first is prefill's, the second decode's."""
CALIBRATION_WINDOWS, CALIBRATION_TOKENS = 12, 8192
"""Enough to quantize by: longer contexts have fewer windows, but two."""
WINDOWS = 4
"""At least so many are judged, because figures' errors come from windows."""
MIN_TOKENS = 256
"""Tokens to find the part by."""
SAMPLE_CHARS = 4000
MAX_OVERLAP = 0.05
"""At most this share of the text that judges may be known from quantizing."""
RUN = 16
"""Tokens, about a dozen words: hardly any two texts have so many in common by chance."""


def require_tokenizer(folder: Path, shape: Architecture) -> None:
    highest = max(load_tokenizer(folder).get_vocab(with_added_tokens=True).values(), default=-1)
    if not 0 <= highest < shape.vocab_size:
        raise UsageError(
            f"{folder}/tokenizer.json has tokens up to {highest}, and the model has {shape.vocab_size} words",
            fix="take tokenizer.json and weights of one model",
        )


def chat_text(folder: Path, message: str, system: str) -> str:
    """By the template of tokenizer_config.json, or of the file that newer checkpoints have."""
    if not has_template(folder):
        raise UsageError(
            f"{folder}: neither {CONFIG} nor {TEMPLATE} has a chat template",
            fix=leave_out("--chat", ": a base model continues text"),
        )
    if not (folder / CONFIG).is_file():
        raise UsageError(
            f"{folder} has {TEMPLATE} without {CONFIG}, which names the tokens that templates write",
            fix="copy it from the checkpoint, or write it:"
            " AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(FOLDER)",
        )
    messages = [{"role": "system", "content": system}] if system else []
    return _rendered(folder, [*messages, {"role": "user", "content": message}], answered=False)


def _rendered(folder: Path, messages: Sequence[Mapping[str, str]], *, answered: bool) -> str:
    try:
        tokenizer = transformers_tokenizer(folder)
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not answered
        )
    # Templates are programs: any error can come out of them.
    except Exception as error:
        raise UsageError(
            f"{folder}: its chat template gives no text: {in_a_line(error)}",
            fix="correct the template, or leave out what it refuses",
        ) from error
    return text


def has_template(folder: Path) -> bool:
    config = folder / CONFIG
    return (folder / TEMPLATE).is_file() or (config.is_file() and '"chat_template"' in read_text(config))


def chat_row(folder: Path, tokenizer: Any, shape: Architecture, tokens: Sequence[int]) -> list[int]:
    """A row, which begins as a text does, as a chat of short turns, and as long as it is in tokens: by the
    checkpoint's template, or else as texts that begin and end."""
    plain = tokens[len(shape.beginning) :]
    turns = [list(plain[at : at + TURN]) for at in range(0, len(plain), TURN)]
    if has_template(folder):
        roles = itertools.cycle(("user", "assistant"))
        messages = [
            {"role": role, "content": tokenizer.decode(turn)}
            for role, turn in zip(roles, turns, strict=False)
        ]
        chat = tokens_of(tokenizer, _rendered(folder, messages, answered=True))
        row = [*shape.beginning, *without_beginning(chat, NONE if shape.bos is None else shape.bos)]
    else:
        row = [token for turn in turns for token in (*shape.beginning, *turn, shape.eos[0])]
    return [*row, *plain][: len(tokens)]


def with_chats(
    texts: Sequence[ForcedText], folder: Path, tokenizer: Any, shape: Architecture, most: int
) -> list[ForcedText]:
    """A share of the texts as questions of a chat, or else after the end of a text; not those that would be
    longer than `most`."""
    bos, found = NONE if shape.bos is None else shape.bos, list(texts)
    for index in range(CHAT_PLACE, len(texts), CHAT_SHARE):
        prompt = list(texts[index].prompt)
        if has_template(folder):
            chat = chat_text(folder, tokenizer.decode(prompt), "")
            prompt = without_beginning(tokens_of(tokenizer, chat), bos)
        else:
            half = len(prompt) // 2
            prompt[half:half] = [shape.eos[0], *shape.beginning]
        if len(prompt) <= most:
            found[index] = ForcedText(prompt, texts[index].tokens)
    return found


def windows(
    folder: Path,
    shape: Architecture,
    text: Path,
    context: int,
    most: int = 0,
    or_else: str = "a shorter --context",
) -> list[list[int]]:
    """Of a text; without `most` as many as it takes to quantize by. Each begins like a prompt, because
    otherwise the first tokens' values would be cut off; and a share are chats, for the same reason.
    `or_else` is what a shorter text needs."""
    most = most or max(2, min(CALIBRATION_WINDOWS, CALIBRATION_TOKENS // context))
    tokenizer = load_tokenizer(folder)
    tokens = tokens_of(tokenizer, read_corpus(text))
    length = context - len(shape.beginning)
    starts = range(0, len(tokens) - length + 1, length)[:most]
    rows = [[*shape.beginning, *tokens[at : at + length]] for at in starts]
    if len(rows) < most:
        needed = quoted("wc", "-w", str(text))
        raise CheckFailed(
            f"{text} has {len(tokens)} tokens: expected {most} windows of {length}",
            fix=f"give a longer text ({needed} counts its words), or {or_else}",
        )
    for row in rows[CHAT_PLACE::CHAT_SHARE]:
        row[:] = chat_row(folder, tokenizer, shape, row)
    return rows


def read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        converted = quoted("iconv", "-f", "LATIN1", "-t", "UTF-8", path)
        raise UsageError(
            f"{path} is not UTF-8 text at byte {error.start}", fix=f"if it is Latin-1: {converted} > OUT"
        ) from None
    require_no_nul(text, str(path))
    return text


def read_corpus(path: Path) -> str:
    """The words of a file to judge or to quantize by: a text, or a form that data sets are published in."""
    text = read_text(path)
    rows = ROWS.get(path.suffix)
    if rows is None:
        return text
    words = []
    for number, row in rows(text):
        if (said := _words_of(row)) is None:
            raise UsageError(
                f"{path}:{number}: expected {EXPECTED}",
                fix="if it is a text, give it a name that ends in .txt",
            )
        words.append(said)
    return "".join(words)


def _csv_rows(text: str) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from ((reader.line_num, row) for row in reader)
    except csv.Error:
        yield reader.line_num, None


def _json_rows(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


ROWS = {".csv": _csv_rows, ".jsonl": _json_rows}
"""By the ending of a file's name: its rows with the numbers of their lines."""
LETTERS = "ABCD"
EXPECTED = (
    "a question, four answers and the letter of the right one, as MMLU has them, or in JSON `text`, or"
    " `question`, `choices` and `answer`"
)


def _words_of(row: Any) -> str | None:
    """Of a row of wikitext, or of MMLU as it is asked; None for any other."""
    if isinstance(row, dict):
        if isinstance(text := row.get("text"), str):
            return text if text.endswith("\n") else f"{text}\n"
        choices, answer = row.get("choices"), row.get("answer")
        if not (isinstance(choices, list) and type(answer) is int and 0 <= answer < len(LETTERS)):
            return None
        row = [row.get("question"), *choices, LETTERS[answer]]
    if not isinstance(row, list) or len(row) != len(LETTERS) + 2 or row[-1] not in [*LETTERS]:
        return None
    question, *choices, letter = map(str, row)
    answers = (f"{name}. {choice}" for name, choice in zip(LETTERS, choices, strict=True))
    return "\n".join((question, *answers, f"Answer: {letter}\n\n"))


def require_no_nul(text: str, what: str) -> None:
    """Genie's tokenizer takes it for the text's end."""
    if "\0" in text:
        raise UsageError(
            f"{what} has a NUL character at place {text.index(chr(0))}, where Genie's tokenizer ends",
            fix="remove it: tr -d '\\000' < TEXT > OUT",
        )


def without_beginning(tokens: Sequence[int], bos: int) -> list[int]:
    """Templates write the token that begins a text, and Genie puts it first itself. Some begin each message
    by the same token."""
    rest = list(tokens[1:] if tokens[:1] == [bos] else tokens)
    if rest[:1] == [bos]:
        raise UsageError(
            f"token {bos}, which begins a text, stands there twice", fix="leave it out: Genie puts it first"
        )
    if not rest:
        raise UsageError("the prompt is empty", fix="give it a word")
    return rest


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Special tokens are what stands in the text: none is added."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def words_after(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """What tokens add to a prompt's text. Decoded without it they lose the space that they begin with
    (sentencepiece)."""
    before = list(prompt[-1:])
    text, longer = (tokenizer.decode(some) for some in (before, [*before, *tokens]))
    added: str = longer[len(text) :]
    return added


def prefix_lengths(count: int, prefill: int, context: int) -> list[int]:
    """Every third prefix takes more than one block of prefill, if the context has room for it."""
    longer = prefill + 8
    lengths = (longer, PREFIX, PREFIX) if 1 + longer + CONTINUED < context else (PREFIX,)
    return [lengths[index % len(lengths)] for index in range(count)]


def prefixes_of(tokens: Sequence[int], lengths: Sequence[int]) -> list[ForcedText]:
    """Their ends are equally far apart, so that each is judged at a place of its own. With the tokens that
    follow in the text."""
    first = max(lengths)
    ends = [first + index * PREFIX for index in range(len(lengths))]
    return [
        ForcedText(list(tokens[end - length : end]), list(tokens[end : end + CONTINUED]))
        for end, length in zip(ends, lengths, strict=True)
    ]


def judged_text(
    order: CompileOrder,
    shape: Architecture,
    path: Path,
    tokens: int,
    prefixes: int,
    *,
    decode_tokens: int | None = None,
    whole: bool = True,
) -> JudgedText:
    """What of a text is read: known before any worker starts. Unless `whole`, Genie's text ends where the
    windows do: where decode reads the prompt, too, all of the context would take too long."""
    folder, context = Path(order.model), order.context
    tokenizer, words = load_tokenizer(folder), read_corpus(path)
    stream = tokens_of(tokenizer, words)
    length = min(context, max(2, tokens // WINDOWS + 1))
    count = -(-tokens // (length - 1))
    lengths = prefix_lengths(prefixes, order.prefill, context)
    own = length - len(shape.beginning)
    for_prefixes = max(lengths) + (len(lengths) - 1) * PREFIX + CONTINUED
    few = min(context, max(MIN_TOKENS, order.prefill + 1))
    wanted = max(for_prefixes, count * own, few - len(shape.beginning))
    if len(stream) < wanted:
        raise UsageError(
            f"{path} has {len(stream)} tokens: {prefixes} prefixes and {count} windows of {own} need"
            f" {wanted}",
            fix=f"name a text of {wanted} tokens, --text FILE, or give fewer --tokens and --prefixes",
        )
    if (seen := share_of_runs(stream[:wanted], order.calibration)) > MAX_OVERLAP:
        raise UsageError(
            f"{seen:.0%} of what would be read of {path} is in the text that it was quantized by, too",
            fix="give another text",
        )
    texts: list[ForcedText] = []
    if order.through == GENIE:
        most = context - order.prefill
        texts = with_chats(prefixes_of(stream, lengths), folder, tokenizer, shape, most)
        said = max(own, PREFIX + CONTINUED)
        end = context - len(shape.beginning) if whole else said
        # A shorter text is read again: the places are what counts.
        long = list(itertools.islice(itertools.cycle(stream), end))
        prompt = max(PREFIX, min(end - said + PREFIX, most))
        texts.append(ForcedText(long[:prompt], long[prompt:]))
    rows, [row] = (windows(folder, shape, path, *size) for size in ((length, count), (few, 1)))
    decode = min(length, max(1, (decode_tokens or tokens) // count) + 1)
    return JudgedText(rows, decode, row, texts, words[:SAMPLE_CHARS], len(stream))


def share_of_runs(tokens: Sequence[int], rows: Iterable[Sequence[int]]) -> float:
    """The share of tokens that are in runs of these rows, wherever the runs begin."""
    known = {tuple(row[at : at + RUN]) for row in rows for at in range(0, len(row) - RUN + 1, RUN)}
    inside = set[int]()
    for at in range(len(tokens) - RUN + 1):
        if tuple(tokens[at : at + RUN]) in known:
            inside.update(range(at, at + RUN))
    return len(inside) / len(tokens)
