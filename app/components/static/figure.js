// A figure: bars, or a sparkline, as SVG of its place's width.
//
// data: kind and the fields of that class of app/presenters/figure.py
//
// Text from the store becomes text nodes, never markup.

const FONT = 12; // pixels
const SAID = 16; // a line of text
const pen = document.createElement("canvas").getContext("2d");
let patterns = 0;

const add = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const svg = (name, attributes = {}, ...children) =>
  add(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const html = (name, attributes = {}, ...children) => add(document.createElement(name), attributes, children);
const label = (x, y, words, anchor = "start", more = {}) => svg("text", { x, y, "text-anchor": anchor, ...more }, words);
const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, class: "grid" });
const mark = (name, words, attributes) => svg(name, { ...attributes, class: "mark", "data-words": words });
const wide = (words) => pen.measureText(words).width;
const widest = (all) => Math.max(0, ...all.map(wide));
const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });

/** The words, cut in their middle where they have no room: what tells names apart is often at their end. */
function fitted(words, room) {
  let left = words.length;
  const cut = () => `${words.slice(0, Math.ceil(left / 2))}…${words.slice(words.length - Math.floor(left / 2))}`;
  if (wide(words) <= room) return words;
  while (left > 2 && wide(cut()) > room) left -= 1;
  return cut();
}

/** Whether a unit stands after the title: on its side, a letter or two cannot be read. */
const isShort = (data) => data.kind === "Bars" && data.unit.length < 4;

// ---- What bars are filled with ----

const STROKES = { "/": "M-1 7L7-1M-1 1L1-1M5 7L7 5", x: "M0 0L6 6M6 0L0 6", "+": "M3 0V6M0 3H6", ".": "M2 3H4" };

/** The fill of a series; the pattern that it names is added to the definitions. */
function filled(series, defs) {
  if (!series.pattern) return series.colour;
  const id = `pattern-${(patterns += 1)}`;
  defs.append(
    svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 6, height: 6, fill: series.colour }),
      svg("path", { d: STROKES[series.pattern], stroke: "#fff", "stroke-width": series.pattern === "." ? 2 : 1, "stroke-opacity": 0.75 })),
  );
  return `url(#${id})`;
}

/** The name of each named series, with its sign. */
function legend(data, fills) {
  const made = (data.series ?? []).flatMap(({ name }, at) => {
    const sign = svg("svg", { width: 18, height: 12, "aria-hidden": "true" }, svg("rect", { width: 18, height: 12, fill: fills[at] }));
    return name ? [html("li", {}, sign, name)] : [];
  });
  return made.length ? [html("ul", {}, ...made)] : [];
}

// ---- Axes ----

/** Round values from 0 to the end of an axis, a few of them. */
function ticks(end, few) {
  const rough = end / few;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, at) => at * step);
}

function upright(words, x, y, room) {
  return label(x, y, fitted(words, room), "middle", { transform: `rotate(-90 ${x} ${y})` });
}

// ---- Bars ----

function bars(data, width, height, drawing, fills) {
  const sums = data.groups.map((_, at) => data.series.reduce((sum, one) => sum + (one.values[at] ?? 0), 0));
  const all = data.stacked ? sums : data.series.flatMap((one) => one.values.map((value) => value ?? 0));
  const top = Math.max(0, ...all);
  const end = top ? top * 1.05 : 1;
  const marks = top ? ticks(end, Math.max(2, height / 50)) : [0];
  const said = marks.map(number);
  let names = data.names.length ? data.names : data.groups;
  const unit = isShort(data) ? "" : data.unit;
  const left = widest(said) + 6 + (unit ? SAID + 2 : 0);
  // Names of a few groups that have no room next to each other are tilted; of many groups some are named.
  const space = (width - left) / Math.max(1, data.groups.length);
  const tilted = data.groups.length <= 12 && widest(names) + 4 > space;
  if (tilted) names = names.map((name) => fitted(name, Math.min(height * 0.4, left + space / 2 - 12) / 0.71));
  const under = (tilted ? widest(names) * 0.71 + 18 : SAID + 4) + (data.across ? SAID + 2 : 0);
  const [right, base, ceiling] = [width - 2, height - under, 6];
  const long = base - ceiling;
  const step = (right - left) / Math.max(1, data.groups.length);
  const broad = Math.min(step * 0.9, 90);
  const each = data.stacked ? broad : broad / Math.max(1, data.series.length);
  // The axis of values.
  marks.forEach((value, at) => {
    const along = (long * value) / end;
    drawing.append(line(left, base - along, right, base - along), label(left - 6, base - along + 4, said[at], "end"));
  });
  if (unit) drawing.append(upright(unit, FONT, (base + ceiling) / 2, base));
  if (data.across) drawing.append(label((left + right) / 2, height - 3, fitted(data.across, width), "middle"));
  // The groups, named as far as there is room.
  const named = names.flatMap((name, at) => (name ? [at] : []));
  const apart = named.length > 1 ? (step * (named.at(-1) - named[0])) / (named.length - 1) : step;
  const every = tilted ? 1 : Math.ceil((widest(names) + 4) / apart);
  named.forEach((at, place) => {
    const name = names[at];
    if (place % every) return;
    const middle = (at + 0.5) * step;
    if (tilted) {
      const [x, y] = [left + middle + 4, base + 12];
      drawing.append(label(x, y, name, "end", { transform: `rotate(-45 ${x} ${y})` }));
    } else if (left + middle + wide(name) / 2 < width) drawing.append(label(Math.max(left + middle, wide(name) / 2), base + SAID, name, "middle"));
  });
  const before = data.groups.map(() => 0);
  data.series.forEach((series, place) => {
    series.values.forEach((value, at) => {
      if (!value) return;
      const across = at * step + (step - broad) / 2 + (data.stacked ? 0 : place * each);
      const [from, length] = [(long * before[at]) / end, Math.max(0.5, (long * value) / end)];
      if (data.stacked) before[at] += value;
      const box = { x: left + across, y: base - from - length, width: each, height: length };
      drawing.append(mark("rect", series.words[at], { ...box, fill: fills[place] }));
    });
  });
}

// ---- A sparkline: one number over time ----

function sparkline(data, width, height, drawing) {
  const [low, high] = [Math.min(...data.values), Math.max(...data.values)];
  const step = width / (data.values.length - 1);
  const edge = 2; // so that the whole of the line is inside
  const up = (value) => height - edge - (height - 2 * edge) * (high > low ? (value - low) / (high - low) : 0.5);
  const through = data.values.map((value, at) => `${at * step} ${up(value)}`).join("L");
  drawing.append(
    svg("path", { class: "under", d: `M0 ${height}L${through}L${width} ${height}Z` }),
    svg("path", { class: "course", d: `M${through}` }),
    ...data.words.map((words, at) => mark("rect", words, { x: (at - 0.5) * step, y: 0, width: step, height, fill: "transparent" })),
  );
}

// ---- The place ----

const KINDS = { Bars: bars, Sparkline: sparkline };
const states = new WeakMap();

function draw(state) {
  const { data, root } = state;
  const width = root.clientWidth;
  if (!width) return; // where nothing shows it, such as in a closed part of the page
  const drawn = JSON.stringify([data, width]);
  if (state.drawn === drawn) return;
  state.drawn = drawn;
  pen.font = `${FONT}px ${getComputedStyle(root).fontFamily}`;
  const defs = svg("defs");
  const fills = (data.series ?? []).map((one) => filled(one, defs));
  const drawing = svg("svg", { width, role: "img", "aria-label": data.title }, defs);
  const place = html("div", { class: "place" }, drawing);
  const title = html("figcaption", {}, isShort(data) && data.unit ? `${data.title}, ${data.unit}` : data.title);
  root.replaceChildren(...(data.kind === "Sparkline" ? [] : [title]), place, ...legend(data, fills)); // a number has its name
  const height = place.clientHeight; // what the title and the legend leave
  drawing.setAttribute("height", height);
  KINDS[data.kind](data, width, height, drawing, fills);
}

/** Shows the words of the mark under the pointer. */
function say(state, event) {
  const words = event.target.dataset?.words;
  state.words?.remove();
  if (!words) return;
  state.words = html("div", { class: "words" }, words);
  state.root.append(state.words);
  const [place, own] = [state.root.getBoundingClientRect(), state.words.getBoundingClientRect()];
  const [x, y] = [event.clientX - place.left + 12, event.clientY - place.top + 12];
  state.words.style.left = `${Math.max(0, Math.min(x, place.width - own.width))}px`;
  state.words.style.top = `${y + own.height > place.height ? Math.max(0, y - own.height - 20) : y}px`;
}

export default function ({ data: [data], parentElement }) {
  let state = states.get(parentElement);
  if (!state) {
    const root = html("figure", { class: "drawn" });
    state = { root };
    states.set(parentElement, state);
    parentElement.append(root);
    root.addEventListener("pointermove", (event) => say(state, event));
    root.addEventListener("pointerleave", () => state.words?.remove());
    new ResizeObserver(() => draw(state)).observe(root);
  }
  state.data = data;
  state.root.style.height = `${data.height}px`;
  draw(state);
}
