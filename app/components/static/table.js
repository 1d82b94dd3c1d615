// A table of a few rows, sorted by the header that is clicked, and a button that saves it as CSV.
//
// data: [{label, even, columns: [{name, numeric, help}], cells: [[{text, value, title, href, bar, alert, mark}]], file}]
// triggers: open ADDRESS
//
// Text from the store becomes text nodes, never markup.

const LONG = 40; // letters of a text that is drawn in several lines

const made = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const change = (element, property, value) => {
  if (element[property] !== value) element[property] = value;
};

/** What stays the same stays where it is: a click on what is replaced under it would be lost. */
function fill(place, { text, title, href, bar, alert }) {
  change(place, "title", title ?? "");
  place.toggleAttribute("data-alert", alert ?? false);
  place.style.setProperty("--bar", bar === undefined ? "" : `${100 * bar}%`);
  let link = place.querySelector("a");
  if (!href) return link ? place.replaceChildren(text) : change(place, "textContent", text);
  if (!link) place.replaceChildren((link = made("a", {})));
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  change(link, "textContent", text);
}

/** The rows in the reader's order; what has no value stands below. */
function sorted({ cells, columns }, { column, ascending }) {
  const at = columns.findIndex(({ name }) => name === column);
  if (at < 0) return cells;
  const compare = columns[at].numeric
    ? (a, b) => (a.value ?? NaN) - (b.value ?? NaN) || (b.value !== undefined) - (a.value !== undefined)
    : (a, b) => a.text.localeCompare(b.text);
  const sign = (a, b) => (ascending || a.value === undefined !== (b.value === undefined) ? 1 : -1);
  return [...cells].sort((a, b) => sign(a[at], b[at]) * compare(a[at], b[at]));
}

function save({ label, file }) {
  const link = made("a", {
    href: URL.createObjectURL(new Blob([file], { type: "text/csv" })),
    download: `${label.toLowerCase().replaceAll(" ", "-")}.csv`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function start(parentElement) {
  const [head, body] = [made("thead"), made("tbody")];
  const table = made("table", {}, head, body);
  const button = made("button", { type: "button" }, "Save as CSV");
  // A keyboard scrolls what has the focus.
  const scroll = made("div", { className: "scroll", tabIndex: 0, role: "region" }, table);
  parentElement.append(made("div", { className: "plain-table" }, scroll, button));
  const parts = { scroll, table, head, body, button, order: {} };
  body.onclick = (event) => {
    const link = event.target.closest("a");
    // With these keys the browser opens a tab or a window, or saves the page.
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    parts.open(link.getAttribute("href"));
  };
  return parts;
}

function drawHead(parts, columns, redraw) {
  const header = ({ name, numeric, help }) => {
    const button = made("button", { type: "button", title: help || `Sort by ${name}` }, name);
    button.onclick = () => {
      const { column, ascending } = parts.order;
      parts.order = { column: name, ascending: column === name ? !ascending : !numeric };
      redraw();
    };
    return made("th", { scope: "col", className: numeric ? "number" : "" }, button);
  };
  parts.head.replaceChildren(made("tr", {}, ...columns.map(header)));
  parts.body.replaceChildren();
}

const tables = new WeakMap();

export default function ({ data: [data], parentElement, setTriggerValue }) {
  const parts = tables.get(parentElement) ?? start(parentElement);
  tables.set(parentElement, parts);
  parts.open = (address) => setTriggerValue("open", address);
  const { scroll, table, head, body, button } = parts;
  for (const named of [scroll, table]) named.setAttribute("aria-label", data.label);
  button.setAttribute("aria-label", `Save ${data.label} as CSV`);
  button.onclick = () => save(data);
  change(button, "hidden", !data.file);
  table.className = data.even ? "even" : "";
  table.style.minWidth = data.even ? `${8 * data.columns.length}rem` : "";
  const form = JSON.stringify(data.columns);
  parts.redraw = () => {
    data.columns.forEach(({ name }, at) => {
      const order = parts.order.ascending ? "ascending" : "descending";
      head.rows[0].cells[at].setAttribute("aria-sort", name === parts.order.column ? order : "none");
    });
    while (body.rows.length > data.cells.length) body.deleteRow(-1);
    sorted(data, parts.order).forEach((cells, at) => {
      const row = body.rows[at] ?? body.insertRow();
      cells.forEach((cell, column) => {
        const place = row.cells[column] ?? row.insertCell();
        const kind = data.columns[column].numeric ? "number" : cell.text.length > LONG ? "long" : "";
        change(place, "className", cell.mark ? `${kind} marked`.trim() : kind);
        fill(place, cell);
      });
    });
  };
  if (parts.form !== form) drawHead(parts, data.columns, () => parts.redraw());
  parts.form = form;
  parts.redraw();
}
