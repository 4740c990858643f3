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
    "edited": ("array", "adopt: the files that somebody has written otherwise, and that stay"),
    "failed": ("object", "divergence: why a program gave no figure, by the node that it ends at"),
    "file": ("string", "inspect: what was read"),
    "files": (
        "array",
        "adopt, repair, tune: what was written; signing: each with its signature, or what was verified",
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
    "what": ("string", "inspect of a library, a package or a DLC: what it is, in words"),
    "size": ("integer", "inspect of a program: bytes"),
    "version": (
        ("integer", "string"),
        "inspect of an ExecuTorch program: of its format; of a Windows library: its own",
    ),
    "methods": ("array", "inspect of an ExecuTorch program: each with its inputs, outputs and operators"),
    "segments": ("array", "inspect of an ExecuTorch program: where its data lie"),
    "build_ids": ("array", "inspect of a context binary: of the QNN that made it"),
    "socs": ("array", "inspect of a context binary: the chips that it names"),
    "arches": ("array", "inspect of a context binary: the Hexagons that it names"),
    "vtcm_bytes": ("array", "inspect of a context binary: VTCM that it takes"),
    "graphs": ("array", "inspect of a context binary: names of its graphs"),
    "half_floats": (
        ("boolean", "null"),
        "inspect of a context binary: whether it computes in fp16; null where it does not say",
    ),
    "soc_id": ("integer", "inspect of a compiled .onnx: the chip, by its number"),
    "arch": ("integer", "inspect of a compiled .onnx: the chip's Hexagon"),
    "outputs": ("array", "inspect of an ONNX model: its outputs"),
    "kernels": ("object", "inspect of a compiled .onnx: how many nodes of each operator are on the CPU"),
    "nodes": ("array", "inspect of a compiled .onnx: each EPContext node"),
    "needs": ("array", "inspect of a library: the libraries that it is linked with"),
    "QNN build": ("array", "inspect of a library or a DLC: of which QNN it is"),
    "members": ("array", "inspect of a DLC: its files"),
    "Authenticode": ("string", "inspect of a Windows library: whether it has a signature"),
    "Android": ("string", "inspect of a library: the API level that it is built for"),
    "NDK": ("string", "inspect of a library: of which NDK it is"),
    "pages": ("string", "inspect of a library: how its segments are aligned"),
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
