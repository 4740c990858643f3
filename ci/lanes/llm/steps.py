"""The order of `test_llm` to Genie's workers. Its files go to the folder that the order names."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ci.lanes.llm.checkpoint_compile import write_binaries
from ci.lanes.llm.compiled import Compiled
from ci.lanes.llm.genie import (
    CONFIG,
    KINDS,
    ForcedText,
    GeneratedText,
    forced_logits,
    generate,
    require_sizes,
    write_config,
)
from ci.lanes.llm.measure import DECODE, MOST, PREFILL, ProgramFolders, figures, genie_windows, texts
from ci.lanes.llm.prompts import PREFIX, prefix_lengths, prefixes_of
from ci.lanes.llm.reference import load_reference
from ci.lanes.llm.suite import FOUR_BITS
from ci.lanes.llm.verdicts import figures_as_json, figures_of

PREFIXES = 100
"""Held-out, after which Genie's logits are read."""
ENDLESS = "endless.json"
"""The configuration for texts that fill the context."""


def order_genie(order: Mapping[str, Any]) -> dict[str, Any]:
    place = ProgramFolders.of(order)
    run, model, into = place.run, place.model, place.into
    context, counts = place.context, {"prefill": PREFILL, "decode": DECODE}
    require_sizes(context, list(counts.values()))
    rows = place.calibration() if run.quantized else []
    binaries = write_binaries(
        model,
        into,
        place.soc,
        rows,
        context=context,
        counts=counts,
        parts=run.parts,
        cache=run.cache,
        four_bits=run.precision == FOUR_BITS,
    )
    shutil.copy(model / "tokenizer.json", into)
    for name, most, shape in (
        (CONFIG, MOST, place.shape),
        (ENDLESS, 2 * context, place.endless()),
    ):
        write_config(into, shape, binaries, place.soc, context=context, most=most, name=name)
    reference = load_reference(model)
    facts: dict[str, Any] = {"bytes": sum(binary.stat().st_size for binary in binaries)}

    def say(prompts: Sequence[Sequence[int]], most: int, *, endless: bool) -> list[GeneratedText]:
        return generate(into / (ENDLESS if endless else CONFIG), prompts, timeout=place.timeout)

    facts["texts"], facts["speed"] = texts(place, reference, say)
    if run.quantized:
        record = {"parts": run.parts, "precision": run.precision, "context": context}
        compiled = Compiled(into, model, place.shape, place.soc, record)
        readers = {name: reader for kind in KINDS for name, reader in compiled.readers(kind).items()}
        facts["figures"] = figures(place, reference, readers)
        stream = [token for row in place.rows("judged") for token in row[1:]]
        short = prefixes_of(stream, prefix_lengths(PREFIXES, PREFILL, context))
        # The last fills the context: all but its first words by decode.
        end = context - len(place.shape.beginning)
        forced = [*short, ForcedText(stream[:PREFIX], stream[PREFIX:end])]
        logits = forced_logits(into / CONFIG, forced, place.shape.vocab_size, timeout=place.timeout)
        read = genie_windows(place.shape, reference, forced, logits)
        facts["figures"] |= {name: figures_as_json(figures_of(windows)) for name, windows in read.items()}
    return facts
