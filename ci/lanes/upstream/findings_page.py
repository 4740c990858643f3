"""docs/findings.md: known faults, and what ExecuTorch's own tests do not pass here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ci.lanes.upstream.ledger import ledger_path, load_ledger, load_record
from ci.lanes.upstream.suite import SUITES
from provisioning.base.accepted import load_accepted
from provisioning.base.commands import as_installed, session
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.components import QNN_SDK
from provisioning.known_faults import FIGURE, FIGURES, Fault, load_faults
from provisioning.manifest import load_profile

NAMES = {"qnn": "QNN", "executorch": "ExecuTorch", "onnxruntime-qnn": "onnxruntime-qnn"}
LANES = {"executorch": "ExecuTorch's lane", "onnx": "ONNX Runtime's lane", "any": "both lanes"}


NOTHING_ON_DEVICES = """\
**Nothing was run on a device here.** `on the emulator` means Qualcomm's HTP emulator, which can be wrong
where a chip is right, and right where a chip is wrong. [A script of each fault](#is-each-fault-still-there)
shows what your versions do.
"""

STILL_THERE = """\
## Is each fault still there

Each has a script in `manifests/faults` that has no code of this project, or says why not: run it with
packages of your own, and send it to who can repair it. Most try two models that have the fault, and one
beside them that has not. Its last line begins with `still`, `gone` or `changed` and has the figures that
stand here; its exit code is 1, 0 or 2. Run them all with what is pinned, or some by name:

```console
$ nox -s faults -- bias-used-twice
still    bias-used-twice: {figure}
```

A fault that is gone, or prints other figures now, is an error until its entry says so: `--close` ends its
versions, `--accept` writes its figures. faults.yml runs them every night on newer pins, opens a pull request
with what is gone, and is red where one changed or a newer version has it.
"""


def page() -> str:
    lines = [
        "# Known faults",
        "",
        "What do QNN, ExecuTorch and ONNX Runtime's provider get wrong, in which versions, and how do you",
        "avoid it? Each fault has the command that shows it and a fix. `qnn-ci validate`, `inspect` and the",
        "stages name those that concern your build. Generated from",
        "[known_faults.toml](../manifests/known_faults.toml): add yours there and run `nox -s generate`.",
        "",
        *NOTHING_ON_DEVICES.splitlines(),
        "",
    ]
    for title, measured in (("Measured here", True), ("Reported", False)):
        if faults := [fault for fault in load_faults() if fault.measured is measured]:
            lines += [f"## {title}", "", *(line for fault in faults for line in _fault(fault))]
    figure = str(load_accepted(FIGURES).of("bias-used-twice").get("figure", ""))
    lines += [*_upstream(), *_suites(), *STILL_THERE.replace(FIGURE, figure).splitlines()]
    head, rest = "\n".join(lines[:7]), "\n".join(lines[7:])
    return f"{head}\n{as_installed(rest)}".rstrip("\n") + "\n"


def _fault(fault: Fault) -> Iterator[str]:
    place = "the emulator" if fault.where == "emulator" else "devices"
    source = fault.source.removeprefix("docs/")
    yield from (f"### {fault.title}", "")
    yield f"{NAMES[fault.product]} {fault.versions}, on {place}, {LANES[fault.lane]}. {fault.effect}"
    if fault.upstream:
        yield from ("", f"**Upstream:** {fault.upstream}.")
    yield from ("", "```console", f"$ {fault.show}", "```", "")
    script = f", [script](../{fault.script})" if fault.script else f", no script: {fault.unshown}"
    yield from (f"**Fix:** {fault.fix}. ({fault.id}: [{source}]({source}){script})", "")


def _upstream() -> Iterator[str]:
    profile, ledger = load_profile(DEFAULT_PROFILE), load_ledger("delegate", DEFAULT_PROFILE)
    if not ledger.expected:
        return
    executorch, qnn = profile.packages["executorch"], profile.components[QNN_SDK].version
    yield from ("## ExecuTorch's own tests", "")
    yield f"What ExecuTorch {executorch} on QNN {qnn} does not pass or does not run of its delegate suite:"
    yield "[the ledger](../manifests/upstream/delegate/wheels.toml). All other tests pass."
    yield from ("", "| test | outcome | cause |", "| --- | --- | --- |")
    for row in ledger.expected:
        chips = f" ({', '.join(row.socs)})" if row.socs else ""
        yield f"| `{row.test}` | {row.outcome.replace('_', ' ')}{chips} | {row.cause} |"
    command = session("test_delegate", "-k", ledger.expected[0].test.rpartition(".")[2])
    yield from ("", "Each is shown by its name:", "", "```console", f"$ {command}", "```", "")


def _suites() -> Iterator[str]:
    """The ledgers name hundreds of tests, so this has their numbers."""
    suites = "[all suites](building.md#executorchs-own-tests)"
    yield f"Of {suites} on {DEFAULT_SOC}, with the ledger that has each cause:"
    yield from ("", "| suite | tests | do not pass |", "| --- | --- | --- |")
    for suite in SUITES:
        ledger = load_ledger(suite, DEFAULT_PROFILE)
        if record := load_record(suite, DEFAULT_PROFILE, DEFAULT_SOC).tests:
            counts = Counter(row.outcome for row in ledger.expected if row.covers(DEFAULT_SOC))
            words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common())
            place = ledger_path(suite, DEFAULT_PROFILE).relative_to(ROOT)
            yield f"| [{suite}](../{place}) | {len(record)} | {words or 'none'} |"
    command = session("test_upstream", "operators", "--report-upstream")
    yield from ("", "What upstream should be told of them:", "", "```console", f"$ {command}", "```", "")
