
{
  const root = document.currentScript?.dataset.root ?? "";

  // Pages that are wide have their list of pages open; on a phone it is folded.
  for (const details of document.querySelectorAll(".pages details"))
    details.open = matchMedia("(min-width: 52rem)").matches;

  const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

  // What a page shows of its rows is in the address: #words=soft&result=wrong.
  for (const form of document.querySelectorAll("form.finder")) {
    const rows = [...document.querySelectorAll(".grid tbody tr, .entry")];
    const texts = rows.map((row) => row.dataset.words ?? row.textContent.toLowerCase());
    const output = form.querySelector("output");
    const value = (name) => {
      const field = form.elements[name];
      return field ? (field.type === "checkbox" ? (field.checked ? field.value : "") : field.value) : "";
    };
    const apply = () => {
      const words = wordsOf(value("words"));
      const [result, kind, differs] = ["result", "kind", "differs"].map(value);
      let count = 0;
      rows.forEach((row, number) => {
        row.hidden = !words.every((word) => texts[number].includes(word)) ||
          (kind && row.dataset.kind !== kind) || (differs && !row.dataset.differs) ||
          (result && ![...row.cells].some((cell) => cell.dataset.results?.split(" ").includes(result)));
        count += !row.hidden;
      });
      for (const section of document.querySelectorAll("section[data-kind]"))
        section.hidden = !section.querySelector(".entry:not([hidden])");
      output.textContent = count === rows.length ? `${count} shown` : `${count} of ${rows.length} shown`;
    };
    const read = () => {
      const asked = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
      for (const field of form.elements) {
        if (!field.name) continue;
        if (field.type === "checkbox") field.checked = asked.get(field.name) === field.value;
        else field.value = asked.get(field.name) ?? "";
      }
      apply();
    };
    const write = () => {
      const set = [...form.elements].filter((field) => field.name && value(field.name));
      const text = new URLSearchParams(set.map((field) => [field.name, value(field.name)])).toString();
      history.replaceState(null, "", text ? `#${text}` : location.pathname);
      for (const link of document.querySelectorAll(".tabs a")) link.hash = text;
      apply();
    };
    form.hidden = false;
    form.addEventListener("input", write);
    form.addEventListener("submit", (event) => event.preventDefault());
    addEventListener("hashchange", read);
    read();
  }

  // A rule may have no row of its own: `lint-mypy` is explained by `lint-*`.
  const name = decodeURIComponent(location.hash.slice(1));
  if (name && !name.includes("=") && !document.getElementById(name)) {
    const fits = (id) => id.includes("*") && id.split("*").every((part) => name.includes(part)) &&
      name.startsWith(id.split("*")[0]) && name.endsWith(id.split("*").at(-1));
    const [row] = [...document.querySelectorAll("[id*='*']")].filter((each) => fits(each.id))
      .sort((a, b) => b.id.startsWith("*") - a.id.startsWith("*") || b.id.length - a.id.length);
    row?.scrollIntoView();
  }
  // A failure has its row on the page of errors, and its text on another.
  const text = name && document.getElementById(name)?.closest(".index li")?.querySelector("a");
  if (text) location.replace(text.href);

  for (const pre of document.querySelectorAll("pre:has(.typed)")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    const commands = [...pre.querySelectorAll(".typed")].map((each) => each.textContent.slice(2));
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(commands.join("\n"));
      button.textContent = "copied";
    });
    const frame = document.createElement("div");
    frame.className = "with-copy";
    pre.replaceWith(frame);
    frame.append(pre, button);
  }

  const search = document.querySelector("form.search");
  const list = document.querySelector("#found");
  const input = search.elements.words;
  const most = 25;
  let index;

  const load = () => {
    index ??= new Promise((done) => {
      const script = document.createElement("script");
      script.src = `${root}search.js`;
      script.onload = () => done(window.searchIndex.map(([kind, title, place, text]) =>
        ({ kind, title, place, text, name: title.toLowerCase(), all: `${title} ${text} ${kind}`.toLowerCase() })));
      document.head.append(script);
    });
    return index;
  };

  // The whole name counts most, then its beginning, then a word in it, then the text. Of those without the whole name,
  // errors and rules come behind pages and operators.
  const rank = (entry, words) => {
    const whole = words.join(" ");
    if (entry.name === whole) return 0;
    if (entry.name.split(" ").includes(whole)) return 1;
    const behind = /^(error|number|rule)/.test(entry.kind) ? 10 : 0;
    if (entry.name.startsWith(whole)) return behind + 2;
    return behind + (words.every((word) => entry.name.includes(word)) ? 3 : 4);
  };

  const excerpt = (entry, words) => {
    const at = entry.text.toLowerCase().indexOf(words[0]);
    const start = at < 40 ? 0 : entry.text.lastIndexOf(" ", at - 30) + 1;
    return `${start ? "… " : ""}${entry.text.slice(start, start + 140)}`;
  };

  const show = async () => {
    const words = wordsOf(input.value);
    list.hidden = !words.length;
    if (!words.length) return;
    const entries = await load();
    const found = entries.filter((entry) => words.every((word) => entry.all.includes(word)));
    const ranked = found.map((entry) => [rank(entry, words), entry]).sort(([a], [b]) => a - b).slice(0, most);
    list.replaceChildren(...ranked.map(([, entry]) => {
      const [item, link, title, kind] = ["li", "a", "b", "small"].map((name) => document.createElement(name));
      link.href = root + entry.place;
      title.textContent = entry.title;
      kind.textContent = `${entry.kind} · ${excerpt(entry, words)}`;
      link.append(title, kind);
      item.append(link);
      return item;
    }));
    if (!ranked.length) {
      const item = document.createElement("li");
      item.textContent = "Nothing found. Try fewer words, a number, or a part of the message.";
      list.append(item);
    }
  };

  search.hidden = false;
  input.addEventListener("focus", load);
  input.addEventListener("input", show);
  search.addEventListener("submit", async (event) => {
    event.preventDefault();
    await show();
    list.querySelector("a")?.click();
  });
  search.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") list.hidden = true;
    if (!step || !links.length) return;
    event.preventDefault();
    const next = links.indexOf(document.activeElement) + step;
    (next < 0 ? input : links[Math.min(next, links.length - 1)]).focus();
  });
  addEventListener("click", (event) => { if (!search.contains(event.target)) list.hidden = true; });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      input.focus();
    }
  });
}
