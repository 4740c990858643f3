"""The steps of the lane, each one order to a worker. Their files go to the folder that the order names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ci.llm.architecture import Architecture, read_architecture
from ci.llm.contexts import Reader, compile_context, on_cpu
from ci.llm.decoder import load_decoder
from ci.llm.genie import Spoken, require_sizes, speak, write_config
from ci.llm.graphs import Encoding, edge_encodings, export, quantize, samples, shared_encodings
from ci.llm.judge import TINY, Comparison, Window, compare_text, figures_of, window_of
from ci.llm.reference import load_reference, logits_of, text_of
from ci.llm.suite import Run
from provisioning.base.errors import CheckFailed
from provisioning.manifest import Soc, soc_named

PREFILL, DECODE = 32, 1
"""Tokens that a graph reads at once."""
PROMPTS = (1, 31, 32, 33, 65)
"""Lengths around one and two blocks of prefill."""
MOST = 60
"""Tokens of a text that ends by itself."""
CALIBRATION_WINDOWS, JUDGED_WINDOWS = 12, 8
PREFIXES, PREFIX = 100, 20
"""Genie gives no logits, so its choice is read after this many held-out prefixes of this length."""


@dataclass(frozen=True)
class ProgramFolders:
    """The folders of a model and of its program."""

    model: Path
    into: Path
    shape: Architecture
    run: Run
    soc: Soc
    timeout: float

    @property
    def context(self) -> int:
        return self.shape.context

    def rows(self, kind: str) -> list[list[int]]:
        """Windows of held-out text that fill the context; each begins like a text."""
        texts: list[list[int]] = json.loads((self.model / "texts.json").read_text(encoding="utf-8"))[kind]
        assert self.shape.bos is not None
        stream = [token for text in texts for token in (self.shape.bos, *text, self.shape.eos[0])]
        length = self.context - 1
        return [[self.shape.bos, *stream[at : at + length]] for at in range(1, len(stream) - length, length)]


def order_genie(order: Mapping[str, Any]) -> dict[str, Any]:
    run = Run.model_validate_json(json.dumps(order["run"]))
    model, into = Path(order["model"]), Path(order["into"])
    place = ProgramFolders(
        model, into, read_architecture(model), run, soc_named(order["soc"]), order["timeout"]
    )
    graphs = {count: into / f"ar{count}.onnx" for count in (PREFILL, DECODE)}
    require_sizes(place.context, list(graphs))
    encodings = _graphs(place, graphs)
    binaries, readers = [], {}
    for number, (count, graph) in enumerate(graphs.items()):
        made, session = compile_context(
            graph, place.soc, into / f"compiled{count}", fp16=not run.quantized, number=number
        )
        binary = into / f"ar{count}.bin"
        shutil.move(made, binary)
        binaries.append(binary)
        readers[count] = Reader(place.shape, session, encodings[count])
    shutil.copy(model / "tokenizer.json", into)
    for name, most, shape in _configurations(place.shape):
        write_config(into, shape, binaries, place.soc, context=place.context, most=most, name=name)
    reference = load_reference(model)
    facts: dict[str, Any] = {"bytes": sum(binary.stat().st_size for binary in binaries)}
    comparisons, facts["speed"] = texts(place, reference)
    facts["texts"] = [_comparison(place, one) for one in comparisons]
    if run.quantized:
        facts["figures"] = _figures(place, reference, readers, graphs, encodings)
        facts["choices"] = choices(place, reference)
    return facts


def _graphs(place: ProgramFolders, graphs: Mapping[int, Path]) -> dict[int, dict[str, Encoding]]:
    """Write them, and give the encodings of their edges."""
    run, found = place.run, {}
    whole = load_decoder(place.model, place.shape, place.context, place.context) if run.quantized else None
    rows = place.rows("calibration")[:CALIBRATION_WINDOWS]
    shared: dict[str, Encoding] = {}
    for count in sorted(graphs):
        graph = graphs[count]
        plain = graph.with_suffix(".float.onnx") if run.quantized else graph
        export(load_decoder(place.model, place.shape, count, place.context), plain)
        if whole is not None:
            if len(rows) < CALIBRATION_WINDOWS:
                raise CheckFailed(
                    f"{len(rows)} windows of text to calibrate by, and {CALIBRATION_WINDOWS} are needed"
                )
            calibration = samples(whole, rows, place.context, count)
            shared = shared or shared_encodings(calibration, run.cache)
            quantize(plain, calibration, graph, activations="QUInt16", weights="QUInt8", encodings=shared)
        found[count] = edge_encodings(graph)
    return found


def _configurations(shape: Architecture) -> list[tuple[str, int, Architecture]]:
    """Configurations for texts that end by themselves, that fill the context, and of one token."""
    endless = replace(shape, eos=(shape.words - 1,))
    return [
        ("genie_config.json", MOST, shape),
        ("endless.json", 2 * shape.context, endless),
        ("one.json", 1, shape),
    ]


def texts(place: ProgramFolders, reference: Any) -> tuple[list[Comparison], dict[str, float]]:
    """Texts after prompts of every length, and one that fills the context, each beside float's text; and
    Genie's speed, which says nothing about a device."""
    _, endless = _configurations(place.shape)[:2]
    stream = [token for row in place.rows("judged") for token in row[1:]]
    plans = [
        (
            "genie_config.json",
            MOST,
            place.shape.eos,
            stream[97 * (place.run.prompts * index + turn) :][:length],
        )
        for index, length in enumerate(PROMPTS)
        for turn in range(place.run.prompts)
    ]
    plans.append(("endless.json", endless[1], endless[2].eos, stream[:1]))
    prompts = [tuple(prompt) for name, _, _, prompt in plans if name != "endless.json"]
    spoken = dict(
        zip(prompts, speak(place.into / "genie_config.json", prompts, timeout=place.timeout), strict=True)
    )
    found = []
    for name, most, ends, prompt in plans:
        assert place.shape.bos is not None
        expected = text_of(reference, [place.shape.bos, *prompt], most, ends, place.context)

        def again(
            tokens: Sequence[int], name: str = name, prompt: Sequence[int] = prompt
        ) -> tuple[Sequence[int], str]:
            asked = (*prompt, *tokens)
            one = spoken.get(asked) if name != "endless.json" else None
            one = one or speak(place.into / name, [asked], timeout=place.timeout)[0]
            return one.tokens, one.stopped

        found.append(
            compare_text(prompt, expected.tokens, expected.stopped, expected.logits, ends, most, again)
        )
    every = [one for one in spoken.values() if len(one.tokens) > 1]
    later = sum(one.seconds - one.first_seconds for one in every)
    return found, {
        "tokens_per_second": round(sum(len(one.tokens) - 1 for one in every) / later, 1) if later else 0.0,
        "first_token_seconds": round(sum(one.first_seconds for one in every) / max(1, len(every)), 2),
    }


def _comparison(place: ProgramFolders, comparison: Comparison) -> dict[str, Any]:
    tokenizer = Tokenizer.from_file(str(place.model / "tokenizer.json"))

    def words(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    return {
        **comparison.as_json(),
        "compared": comparison.tokens,
        "prompt_text": words(comparison.prompt),
        "expected_text": words(comparison.expected),
        "found_text": words(comparison.found),
    }


def _figures(
    place: ProgramFolders,
    reference: Any,
    readers: Mapping[int, Reader],
    graphs: Mapping[int, Path],
    encodings: Mapping[int, Mapping[str, Encoding]],
) -> dict[str, Any]:
    """Figures on held-out text: prefill and decode on HTP, the same on the CPU as written, and HTP compared
    with that."""
    rows = place.rows("judged")[:JUDGED_WINDOWS]
    expected = [logits_of(reference, row) for row in rows]
    found: dict[str, Any] = {}
    read: dict[str, list[Any]] = {}
    for count, reader in readers.items():
        name = "prefill" if count == PREFILL else "decode"
        for where, one in (
            ("htp", reader),
            ("cpu", Reader(place.shape, on_cpu(graphs[count]), encodings[count])),
        ):
            read[f"{name}_{where}"] = [_read(one, row) for row in rows]
    for name, logits in read.items():
        found[name] = _as_json(
            [window_of(a, b[: len(a)], row[1:]) for a, b, row in zip(logits, expected, rows, strict=True)]
        )
    for name in ("prefill", "decode"):
        pairs = zip(read[f"{name}_htp"], read[f"{name}_cpu"], rows, strict=True)
        found[f"{name}_htp_cpu"] = _as_json([window_of(a, b, row[1:]) for a, b, row in pairs])
    return {"tokens": sum(len(row) - 1 for row in rows), "windows": len(rows), **found}


def _read(reader: Reader, row: Sequence[int]) -> Any:
    reader.restart()
    return reader.read(row[:-1])


def _as_json(windows: Sequence[Window]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in figures_of(windows).items()}


def choices(place: ProgramFolders, reference: Any) -> dict[str, Any]:
    """Genie's own first choices after held-out prefixes, by what float loses by them."""
    stream = [token for row in place.rows("judged") for token in row[1:]]
    prefixes = [stream[at : at + PREFIX] for at in range(0, PREFIXES * PREFIX, PREFIX)]
    spoken = speak(place.into / "one.json", prefixes, timeout=place.timeout)
    return _regret(place.shape, reference, prefixes, spoken)


def order_choices(order: Mapping[str, Any]) -> dict[str, Any]:
    """What float loses by Genie's choices: for `llm check`."""
    folder = Path(order["model"])
    spoken = [Spoken(tuple(tokens), "", 0, 0) for tokens in order["spoken"]]
    return _regret(read_architecture(folder), load_reference(folder), order["prefixes"], spoken)


def _regret(
    shape: Architecture, reference: Any, prefixes: Sequence[Sequence[int]], spoken: Sequence[Spoken]
) -> dict[str, Any]:
    regrets = []
    for prefix, one in zip(prefixes, spoken, strict=True):
        row = logits_of(reference, [shape.bos or 0, *prefix])[-1]
        # Genie prints nothing if it chooses to end; of several ends, take float's nearest.
        tokens = one.tokens[:1] or shape.eos
        regrets.append(float(row.max() - max(row[token] for token in tokens)))
    return {
        "near_ties": sum(0 < regret < TINY for regret in regrets),
        "prefixes": len(regrets),
        "first_choice": sum(regret == 0 for regret in regrets) / len(regrets),
        "regret": sum(regrets) / len(regrets),
        "worst_regret": max(regrets),
    }
