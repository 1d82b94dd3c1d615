// A table of kernels, or of entries: real links, tick boxes, headers that sort, and columns that the reader chooses.
//
// data: name, columns: [{name, numeric, sort}], hidden: [names of columns],
//       wanted: null or {generation, names}: columns to show in place of the reader's, rows: [{key, href, cells: [{text, title}]}],
//       picks: null or {generation, keys}, sorted: null or {by, ascending}, label
// states: picked {generation, keys}, columns: null or [names] as the reader chose them; triggers: open KEY, sort {by, ascending}
//
// Text from the store becomes text nodes, never markup.

const element = (name, properties = {}, ...children) => {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (property.includes("-") || property === "role") made.setAttribute(property, value);
    else made[property] = value;
  }
  made.append(...children);
  return made;
};

// ---- Which columns, in which order: kept in the browser, for each table ----

const place = (data) => `gemm-cache columns of ${data.name}`;

function chosenColumns(data) {
  const names = data.columns.map((column) => column.name);
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(place(data)));
  } catch {
    // A browser may refuse storage; the usual columns then.
  }
  const valid = validColumns(data, kept);
  return valid.length ? valid : names.filter((name) => !data.hidden.includes(name));
}

const validColumns = (data, names) =>
  Array.isArray(names)
    ? names.filter((name, at) => data.columns.some((one) => one.name === name) && names.indexOf(name) === at)
    : [];

function keepColumns(data, names) {
  try {
    if (names) localStorage.setItem(place(data), JSON.stringify(names));
    else localStorage.removeItem(place(data));
  } catch {
    // As above: the choice lasts until the page is loaded again.
  }
}

function columnMenu(data, state, redraw) {
  const shown = state.columns;
  const rest = data.columns.map((column) => column.name).filter((name) => !shown.includes(name));
  const choose = (names, focus) => {
    state.columns = names;
    keepColumns(data, names);
    state.tell.columns(names);
    redraw(focus);
  };
  const moved = (at, by) => {
    const names = [...shown];
    names.splice(at + by, 0, ...names.splice(at, 1));
    return names;
  };
  const item = (name, at) => {
    const box = element("input", { type: "checkbox", checked: at >= 0, disabled: at >= 0 && shown.length === 1 });
    box.dataset.focus = `column ${name}`;
    box.onchange = () =>
      choose(at >= 0 ? shown.filter((one) => one !== name) : [...shown, name], box.dataset.focus);
    const row = element("li", {}, element("label", {}, box, name));
    if (at >= 0) {
      for (const [by, sign, word] of [[-1, "↑", "earlier"], [1, "↓", "later"]]) {
        const button = element("button", { type: "button", "aria-label": `Move ${name} ${word}` }, sign);
        button.disabled = at + by < 0 || at + by >= shown.length;
        button.dataset.focus = `${word} ${name}`;
        button.onclick = () => choose(moved(at, by), button.dataset.focus);
        row.append(button);
      }
    }
    return row;
  };
  const usual = element("button", { type: "button" }, "Usual columns");
  usual.dataset.focus = "usual";
  usual.onclick = () => {
    keepColumns(data, null);
    state.columns = chosenColumns(data);
    state.tell.columns(null);
    redraw("usual");
  };
  const summary = element("summary", {}, "Columns");
  summary.dataset.focus = "columns";
  const menu = element("details", { open: state.isMenuOpen }, summary);
  menu.ontoggle = () => (state.isMenuOpen = menu.open);
  menu.onkeydown = (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    summary.focus();
  };
  menu.append(element("div", { className: "menu" }, element("ul", {}, ...shown.map(item), ...rest.map((name) => item(name, -1))), usual));
  return menu;
}

// ---- The table ----

function head(data, state, columns) {
  const row = element("tr");
  if (data.picks) {
    const keys = data.rows.map((each) => each.key);
    const all = keys.every((key) => state.picked.has(key));
    const box = element("input", { type: "checkbox", checked: all, "aria-label": `Select all ${data.label.toLowerCase()} of this page` });
    box.indeterminate = !all && keys.some((key) => state.picked.has(key));
    box.dataset.focus = "all";
    box.onchange = () => state.tell.pick(keys, box.checked);
    row.append(element("th", { scope: "col" }, box));
  }
  for (const column of columns) {
    const cell = element("th", { scope: "col", className: column.numeric ? "number" : "" });
    if (column.sort && data.sorted) {
      const isSorted = data.sorted.by === column.sort;
      const ascending = isSorted ? !data.sorted.ascending : !column.numeric;
      const sign = isSorted ? (data.sorted.ascending ? " ▲" : " ▼") : "";
      const button = element("button", { type: "button" }, column.name + sign);
      button.dataset.focus = `sort ${column.name}`;
      button.title = `Sort all ${data.label.toLowerCase()} by ${column.sort}, ${ascending ? "ascending" : "descending"}`;
      button.onclick = () => state.tell.sort({ by: column.sort, ascending });
      cell.setAttribute("aria-sort", isSorted ? (data.sorted.ascending ? "ascending" : "descending") : "none");
      cell.append(button);
    } else cell.append(column.name);
    row.append(cell);
  }
  return element("thead", {}, row);
}

function line(data, state, columns, row) {
  const made = element("tr");
  if (data.picks) {
    const box = element("input", { type: "checkbox", checked: state.picked.has(row.key) });
    box.setAttribute("aria-label", `Select ${row.cells[0].text}`);
    box.dataset.focus = `pick ${row.key}`;
    box.onchange = () => state.tell.pick([row.key], box.checked);
    made.append(element("td", {}, box));
  }
  columns.forEach((column, at) => {
    const { text, title } = row.cells[data.columns.indexOf(column)];
    const cell = element("td", { className: column.numeric ? "number" : "" });
    if (title) cell.title = title;
    // The first column is the link, whichever it is.
    if (at === 0) {
      const link = element("a", { href: row.href }, text);
      link.dataset.focus = `open ${row.key}`;
      link.onclick = (event) => {
        // With these the browser opens a tab or a window, or saves the page.
        if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        state.tell.open(row.key);
      };
      cell.append(link);
    } else cell.append(text);
    made.append(cell);
  });
  return made;
}

/** The body's rows. What stays the same stays where it is: a click on what is replaced under it would be lost. */
function body(data, state, columns) {
  const lines = data.rows.map((row) => {
    const fresh = line(data, state, columns, row);
    const old = state.lines.get(row.key);
    if (!old) return [row.key, fresh];
    [...fresh.cells].forEach((cell, at) => {
      const [there, now] = [old.cells[at], cell];
      if (there.title !== now.title) there.title = now.title;
      if (there.textContent !== now.textContent) there.replaceChildren(...now.childNodes);
    });
    return [row.key, old];
  });
  state.lines = new Map(lines);
  const rows = [...state.lines.values()];
  if (rows.length !== state.body.rows.length || rows.some((row, at) => row !== state.body.rows[at])) {
    state.body.replaceChildren(...rows);
  }
  for (const [key, row] of state.lines) {
    row.classList.toggle("picked", state.picked.has(key));
    if (data.picks) row.querySelector("input").checked = state.picked.has(key);
  }
}

/** Arrow keys go from a row's link or tick box to that of the next row. */
function walk(event) {
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const kind = event.target.matches?.("tbody a") ? "a" : event.target.matches?.("tbody input") ? "input" : null;
  if (!step || !kind) return;
  event.preventDefault();
  event.target.closest("tr")[step]?.querySelector(kind)?.focus();
}

const states = new WeakMap();

export default function ({ data: [data], parentElement, setStateValue, setTriggerValue }) {
  let state = states.get(parentElement);
  if (!state) {
    const root = element("div", { className: "kernels" });
    const rows = element("tbody");
    const table = element("table", {}, element("thead"), rows);
    root.append(element("div", { className: "menu-place" }), element("div", { className: "scroll" }, table));
    root.addEventListener("keydown", walk);
    parentElement.append(root);
    state = { root, table, body: rows, lines: new Map(), columns: chosenColumns(data), picked: new Set() };
    states.set(parentElement, state);
  }
  // What the reader ticks counts at once. The page's own answer to it may be older than the next tick.
  if (data.picks && state.generation !== data.picks.generation) {
    state.generation = data.picks.generation;
    state.picked = new Set(data.picks.keys);
  }
  state.tell = {
    open: (key) => setTriggerValue("open", key),
    sort: (order) => setTriggerValue("sort", order),
    columns: (names) => setStateValue("columns", names),
    pick: (keys, isPicked) => {
      keys.forEach((key) => (isPicked ? state.picked.add(key) : state.picked.delete(key)));
      draw();
      setStateValue("picked", { generation: state.generation, keys: [...state.picked] });
    },
  };
  if (data.wanted && state.wanted !== data.wanted.generation) {
    state.wanted = data.wanted.generation;
    const names = validColumns(data, data.wanted.names);
    state.columns = names.length ? names : chosenColumns(data);
    state.form = undefined;
    state.tell.columns(names.length ? names : null);
  }
  function draw(wanted) {
    const focus = wanted ?? (state.root.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined);
    const columns = state.columns.map((name) => data.columns.find((column) => column.name === name)).filter(Boolean);
    const form = JSON.stringify([columns, data.columns, !!data.picks]);
    if (state.form !== form) {
      state.form = form;
      state.lines.clear();
      state.root.firstChild.replaceChildren(columnMenu(data, state, draw));
    }
    state.table.setAttribute("aria-label", data.label);
    state.table.tHead.replaceWith(head(data, state, columns));
    body(data, state, columns);
    const found = focus && [...state.root.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === focus);
    if (found && found !== document.activeElement) found.focus();
  }
  draw();
}
