"""docs/options.md: what ONNX Runtime's QNN provider and its sessions take."""

from __future__ import annotations

from collections.abc import Iterator

from ci.lanes.onnx.options import Option, options

HEAD = """\
<!-- Generated from manifests/onnx_options.toml: `nox -s generate` renews it. -->
# Options of ONNX Runtime's QNN provider

What can `--option NAME=VALUE` of `qnn-ci compile net.onnx`, or `options = { … }` in a suite, set?
Unknown names, bad values and options without effect are refused
([ONNX](onnx.md)).
"""
SCOPES = {
    "provider": "Provider, when the session is made",
    "session": "Session",
}


def page() -> str:
    return "\n".join([HEAD, *_tables()])


def _tables() -> Iterator[str]:
    for scope, title in SCOPES.items():
        yield f"## {title}\n"
        yield "| option | values | what it does |\n| --- | --- | --- |"
        yield from (_row(option) for option in options().values() if option.scope == scope)
        yield ""


def _row(option: Option) -> str:
    values = ", ".join(f"`{value}`" for value in option.values) or option.kind
    if option.default:
        values += f" [{option.default}]"
    notes = [option.summary]
    if option.refused:
        notes.append(f"refused: {option.refused}")
    if option.needs:
        notes.append(f"needs {', '.join(option.needs)}")
    return f"| `{option.name}` | {values} | {'; '.join(notes)} |"
