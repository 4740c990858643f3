"""The page's section on profiles: each model's modules as a tree, with the share of every operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from ci.report.elements import element
from ci.suites.profile import Cost
from ci.suites.profile_page import Branch, tree_of
from provisioning.base.findings import Metric, Report

STAGE = "profile"


def profiles_section(reports: Sequence[Report]) -> Element | None:
    """None if nothing was profiled."""
    found = {
        name: costs
        for report in reports
        if report.stage == STAGE
        for name, profile in _mapping(report.metrics.get("profiles")).items()
        if (costs := _costs(profile))
    }
    if not found:
        return None
    note = (
        "Shares of the emulator's cycles, the least of several runs. They follow the time of the machine that"
        " measured them, not the chip's."
    )
    section = element("section", element("h2", "Profiles"), element("p", note, class_="soft"), id="profiles")
    for name, costs in found.items():
        section.extend([element("h3", name), _branch("the model", tree_of(costs), open_=True)])
    return section


def _branch(name: str, branch: Branch, *, open_: bool = False) -> Element:
    summary = element("summary", _row(element("strong", name), branch.share))
    whole = element("details", summary, class_="tree", **({"open": "open"} if open_ else {}))
    for each, below in sorted(branch.branches.items(), key=lambda item: -item[1].share):
        whole.append(_branch(each, below))
    for cost in branch.operators:
        if cost.share:
            line = element("span", f" {cost.line}", class_="soft")
            whole.append(_row(element("span", cost.operator, line), cost.share))
    return whole


def _row(title: Element, share: float) -> Element:
    picture = element(
        "svg",
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{share:.1%}",
    )
    picture.append(element("rect", width=f"{100 * share:.2f}", height="8", class_="share"))
    return element("span", title, picture, element("span", f"{share:.1%}", class_="figure"), class_="branch")


def _costs(profile: Metric) -> list[Cost]:
    """Operators of another form than expected are left out."""
    operators = _mapping(profile).get("operators")
    found = []
    for each in operators if isinstance(operators, list) else []:
        row = _mapping(each)
        share, name = row.get("share"), row.get("operator")
        if isinstance(share, int | float) and isinstance(name, str):
            line, module = (str(row.get(key) or "") for key in ("line", "module"))
            found.append(Cost(name, 0, min(1.0, max(0.0, float(share))), line=line, module=module))
    return found


def _mapping(value: Metric) -> Mapping[str, Metric]:
    return value if isinstance(value, dict) else {}
