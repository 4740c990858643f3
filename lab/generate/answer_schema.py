"""manifests/schema/answer.json: what all answers have, and the facts of each verb."""

from __future__ import annotations

import json

from provisioning.base.answer import Answer

FACTS = {
    "after": (("object", "null"), "repair: what the rewritten model gives; null where nothing was rewritten"),
    "against": ("object", "inspect --against: whether that SDK's libraries load it, and why not"),
    "before": ("object", "repair: what the model gives, or why it gives no program"),
    "by_channel": (
        ("object", "null"),
        "repair: what it gives with a scale for each channel of the weights; null where that is no better",
    ),
    "changes": ("array", "repair: each place that was rewritten, by which rewrite and for which rule"),
    "chips": (
        "object",
        "chips: by QNN's name its Hexagon, its VTCM, and its other names and devices, each with all chips"
        " that it may mean",
    ),
    "compared": ("object", "run --compare: by output how far it is from the other's"),
    "components": ("array", "provision: each with version, source and place"),
    "cpu": ("array", "profile: operators on the CPU"),
    "between": ("array", "divergence: the two nodes between which a search was whose time was over"),
    "cuts": ("object", "divergence: SQNR by the node that was measured"),
    "delegates": ("array", "inspect of a program: its context binaries"),
    "failed": ("object", "divergence: why a program gave no figure, by the node that it ends at"),
    "file": ("string", "inspect: what was read"),
    "files": (
        "array",
        "repair, tune: what was written; signing: each with its signature, or what was verified",
    ),
    "first": (("object", "null"), "divergence: the operator that differs, with line and operands"),
    "fix": ("string", "forecast: what to do where forecasts are withheld"),
    "forecasts": ("array", "forecast: of each phone"),
    "frontier": ("array", "tune: each program that was measured, with its accuracy and costs"),
    "good": ("boolean", "inspect of packages: whether nothing in them is wrong"),
    "inputs": ("array", "diagnose: what is known of each; inspect of an ONNX model: its inputs"),
    "kind": ("string", "inspect: what the file is"),
    "least": ("number", "divergence: a lower SQNR is a difference, dB"),
    "model": ("string", "audit, profile, repair, tune: as typed"),
    "operators": ("array", "profile: each with its share, line and module"),
    "packages": ("object", "inspect of packages: what is in each"),
    "precisions": (
        "object",
        "audit: by precision what HTP takes, what stays on the CPU, why and at what cost",
    ),
    "profile": ("string", "provision: the profile"),
    "program": ("string", "divergence: its name"),
    "programs": ("array", "compile, quantize: the record of each, with its files, words and warnings"),
    "reference": ("string", "divergence: what the program is compared with"),
    "refused": ("array", "repair: each place that was not rewritten, and why"),
    "reports": ("array", "report: each, as its file has it"),
    "schemes": ("array", "tune: the cheap and the exact precision"),
    "soc": ("string", "audit, profile, repair: the chip"),
    "sqnr_db": (("number", "string"), "divergence: of the whole program"),
    "steps": ("array", "tune: how it was found"),
    "verdict": ("string", "divergence: what the written script says when it runs alone"),
    "withheld": ("string", "forecast: why there is none"),
    "trees": ("array", "store list: each with its size and place"),
}
"""By name: JSON type and meaning."""


def text() -> str:
    from pydantic import TypeAdapter

    from lab.generate import DIALECT

    document = TypeAdapter(Answer).json_schema(mode="serialization")
    document["properties"] |= {
        name: {"description": about, "type": [*kind] if isinstance(kind, tuple) else kind}
        for name, (kind, about) in FACTS.items()
    }
    title = "What --json writes: the same of every verb, and the verb's own facts"
    return json.dumps({"$schema": DIALECT, **document, "title": title}, indent=2, sort_keys=True) + "\n"
