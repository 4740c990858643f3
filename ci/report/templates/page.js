"use strict";

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[head.cellIndex].dataset.key ?? row.cells[head.cellIndex].textContent;
      const order = new Intl.Collator(undefined, { numeric: true }).compare;
      const rows = [...body.rows].sort((a, b) => order(key(a), key(b)));
      body.append(...(down ? rows.reverse() : rows));
    });
  }
}

const filters = document.querySelector("form.filters:not(#program-filter)");
if (filters) {
  const rows = [...document.querySelectorAll("#findings tbody tr")];
  const shown = document.querySelector("#shown");
  const apply = () => {
    const words = filters.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const stage = filters.elements.stage.value;
    const severities = new Set([...filters.querySelectorAll("input:checked")].map((box) => box.value));
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !severities.has(row.dataset.severity) || (stage && row.dataset.stage !== stage) ||
        !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = count === rows.length ? "" : `${count} of ${rows.length} shown`;
  };
  filters.hidden = false;
  filters.addEventListener("input", apply);
  filters.addEventListener("submit", (event) => event.preventDefault());
}

const programFilter = document.querySelector("#program-filter");
if (programFilter) {
  const programs = [...document.querySelectorAll(".program")];
  const shown = programFilter.querySelector("output");
  const apply = () => {
    const words = programFilter.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const program of programs) {
      const text = program.textContent.toLowerCase();
      program.hidden = (programFilter.elements.bad.checked && program.dataset.verdict !== "fail") ||
        !words.every((word) => text.includes(word));
      count += !program.hidden;
    }
    shown.textContent = count === programs.length ? "" : `${count} of ${programs.length} shown`;
  };
  programFilter.hidden = false;
  programFilter.addEventListener("input", apply);
  programFilter.addEventListener("submit", (event) => event.preventDefault());
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target?.classList.contains("program")) return;
    target.hidden = false;
    target.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
}
