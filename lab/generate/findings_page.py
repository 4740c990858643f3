"""docs/findings.md: known faults, and what ExecuTorch's own tests do not pass here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ci.lanes.upstream.accepted import accepted_file, load_tests
from ci.lanes.upstream.suite import upstream_suites
from provisioning.accepted_file import load_accepted
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.components import QNN_SDK
from provisioning.known_faults import FIGURE, FIGURES, Fault, load_faults
from provisioning.manifest import load_profile

NAMES = {"qnn": "QNN", "executorch": "ExecuTorch", "onnxruntime-qnn": "onnxruntime-qnn"}
LANES = {"executorch": "ExecuTorch", "onnx": "ONNX Runtime", "any": "ExecuTorch and ONNX Runtime"}


NOTHING_ON_DEVICES = """\
**Nothing was run on a device here.** `on the emulator` means Qualcomm's HTP emulator, which can be wrong
where a chip is right, and right where a chip is wrong. [A script of each fault](#is-each-fault-still-there)
shows what your versions do.
"""

STILL_THERE = """\
## Is each fault still there

Each fault has a script in `manifests/faults`, or says why it has none. A script contains no code of this
project: you can run it with your own packages, and send it to those who can repair the fault. Most scripts
try two models with the fault and a similar one without it. With the pinned versions:

```console
$ qnn-ci shell python manifests/faults/bias-used-twice.py
still - {figure}
```

The last line begins with one of these words and has the figures of this page:

| word | exit code | `nox -s lab -- faults`, which runs all scripts in a clone |
| --- | --- | --- |
| `still` | 1 | passes if the figures are the same, else it fails until `--accept` writes the new ones |
| `gone` | 0 | fails until `--close` ends the versions of the fault |
| `changed` | 2 | fails |

faults.yml runs the scripts every night with newer pins. It opens a pull request for faults that are gone.
"""


def page() -> str:
    lines = [
        "# Known faults",
        "",
        "What do QNN, ExecuTorch and ONNX Runtime's provider get wrong, in which versions, and how do you",
        "avoid it? `qnn-ci validate`, `inspect` and the stages name the faults of your build. Generated from",
        "[known_faults.toml](../manifests/known_faults.toml): add yours there and run `nox -s generate`.",
        "Commands that name a file of `manifests/` are for a clone of the repository.",
        "",
        *NOTHING_ON_DEVICES.splitlines(),
        "",
        "| fault | versions | seen through |",
        "| --- | --- | --- |",
        *(
            f"| [{fault.title}](#{fault.id}) | {_versions(fault)} | {LANES[fault.lane]} |"
            for fault in load_faults()
        ),
        "",
    ]
    for title, measured in (("Measured here", True), ("Reported", False)):
        if faults := [fault for fault in load_faults() if fault.measured is measured]:
            lines += [f"## {title}", "", *(line for fault in faults for line in _fault(fault))]
    lines += [*_upstream(), *_suites(), *STILL_THERE.replace(FIGURE, _figure("bias-used-twice")).splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _figure(name: str) -> str:
    """What the script of a fault printed last; empty if it has none."""
    return str(load_accepted(FIGURES).of(name).get("figure", ""))


def _versions(fault: Fault) -> str:
    return f"{NAMES[fault.product]} {fault.versions.removeprefix('==')}"


def _fault(fault: Fault) -> Iterator[str]:
    place = "the emulator" if fault.where == "emulator" else "devices"
    source = fault.source.removeprefix("docs/")
    effect, measured = _effect(fault)
    yield from (f"### {fault.title}", "", f'<a id="{fault.id}"></a>')
    yield from (f"*{_versions(fault)}, on {place}, through {LANES[fault.lane]}*", "", effect, "")
    if measured:
        yield f"- **Measured:** {measured}"
    yield f"- **Fix:** {fault.fix}"
    if fault.upstream:
        yield f"- **Upstream:** {fault.upstream}"
    script = f"[its script](../{fault.script})" if fault.script else f"it has no script: {fault.unshown}"
    yield f"- **More:** `qnn-ci diagnose {fault.id}`, [{source}]({source}), {script}"
    yield "- **See it:**"
    yield from ("", "```console", f"$ {fault.shown_by.installed}".replace(f"{ROOT}/", ""), "```", "")


def _effect(fault: Fault) -> tuple[str, str]:
    """What happens, and the sentence with the figures that its script printed."""
    figure = _figure(fault.id)
    before, found, after = fault.effect.partition(f": {figure}.")
    if not figure or not found:
        return fault.effect, ""
    text, _, words = before.rpartition(". ")
    measured = figure if words == "Measured" else f"{words}: {figure}"
    return f"{text}.{after}" if text else after.strip(), measured


def _upstream() -> Iterator[str]:
    profile, accepted = load_profile(DEFAULT_PROFILE), load_tests("delegate", DEFAULT_PROFILE, DEFAULT_SOC)
    failing = sorted(test for test, row in accepted.tests.items() if row.outcome != "passed")
    if not failing:
        return
    executorch, qnn = profile.packages["executorch"], profile.components[QNN_SDK].version
    yield from ("## ExecuTorch's own tests", "")
    yield f"These tests of the delegate suite of ExecuTorch {executorch} do not pass, or do not run, with"
    place = "../manifests/upstream/delegate/accepted-wheels.json"
    yield f"QNN {qnn} on {DEFAULT_SOC} ([accepted results]({place})). All others pass."
    yield from ("", "| test | outcome | cause |", "| --- | --- | --- |")
    for test in failing:
        yield f"| `{test}` | {accepted.of(test).outcome.replace('_', ' ')} | {accepted.cause(test)} |"
    command = session("test_delegate", "-k", failing[0].rpartition(".")[2]).installed
    yield from ("", "Run one by its name:", "", "```console", f"$ {command}", "```", "")


def _suites() -> Iterator[str]:
    """Hundreds of tests are accepted as they fail, so this has their numbers."""
    suites = "[all suites](building.md#executorchs-own-tests)"
    yield f"How many tests of {suites} do not pass on {DEFAULT_SOC}? Each name leads to the causes:"
    yield from ("", "| suite | tests | do not pass |", "| --- | --- | --- |")
    for suite in (*upstream_suites(), "zoo"):
        if tests := load_tests(suite, DEFAULT_PROFILE, DEFAULT_SOC).tests:
            counts = Counter(row.outcome for row in tests.values() if row.outcome != "passed")
            words = ", ".join(
                f"{count} {name.replace('_', ' ')}"
                for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            )
            place = accepted_file(suite, DEFAULT_PROFILE).relative_to(ROOT)
            yield f"| [{suite}](../{place}) | {len(tests)} | {words or 'none'} |"
    yield from ("", "In a clone, `nox -s lab -- upstream_reports` prints them as issues.", "")
