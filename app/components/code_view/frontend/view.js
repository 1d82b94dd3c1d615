// The view: a bar with what acts on all panes, a line that says what is lit, and the panes.
import { read, placeInAddress, write } from "./address.js";
import { Links, PTX, SASS, SOURCE } from "./links.js";
import { KINDS, Pane } from "./pane.js";
import { lowered, search } from "./search.js";
import { CSS } from "./theme.js";

const DWELL_MS = 120;
const FIRST_SHOWN = [SOURCE, PTX, SASS];

/** An element with properties and children; text is text, never HTML. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const button = (label, title, onclick) => element("button", { type: "button", textContent: label, title, onclick });
const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

export class CodeView {
  constructor(root, data) {
    this.data = data;
    this.links = new Links(data.panes, data.chains);
    this.texts = data.panes.map((pane) => lowered(pane.text));
    this.found = data.panes.map(() => []);
    this.current = -1;
    this.code = Math.max(this.index(SASS), this.index(SASS) < 0 ? this.index(PTX) : -1);
    this.selected = null;
    this.element = element("div", { className: "code-view" });
    this.element.style.setProperty("--height", `${data.height}px`);
    this.style = element("style", { textContent: CSS });
    root.append(this.style, this.element);
    this.#build(root);
    this.#open();
  }

  index = (name) => this.data.panes.findIndex((pane) => pane.name === name);

  // ---- Building

  #build(root) {
    const shown = read("panes").split(",").filter((name) => this.index(name) >= 0);
    const usual = FIRST_SHOWN.filter((name) => this.index(name) >= 0);
    this.usual = usual.length ? usual : [this.data.panes[0].name];
    const visible = new Set(shown.length ? shown : this.usual);
    const box = element("div", { className: "panes" });
    this.status = element("div", { className: "status", role: "status" });
    this.element.append(this.#bar(visible), this.status, box);
    this.boxes = this.data.panes.map((pane, number) => {
      const section = element("section", { className: "pane", hidden: !visible.has(pane.name), "aria-label": pane.name });
      section.append(this.#head(pane, number));
      box.append(section);
      return section;
    });
    this.panes = this.data.panes.map((pane, number) => {
      const colour = (line) => this.links.colour.get(this.links.chain(number, line)[0]);
      const made = new Pane(pane, root, this.boxes[number], colour, {
        select: (first, last) => this.#select(number, first, last),
        hover: (line) => this.#hover(number, line),
      });
      made.view.contentDOM.addEventListener("keydown", (event) => this.#key(event));
      return made;
    });
  }

  #bar(visible) {
    this.toggles = this.data.panes.map((pane, number) => {
      const toggle = button(pane.name, `Show or hide ${pane.name}`, () => this.#toggle(number, toggle));
      toggle.setAttribute("aria-pressed", visible.has(pane.name));
      return toggle;
    });
    this.input = element("input", { type: "search", placeholder: "Find in all panes", "aria-label": "Find in all panes" });
    this.input.maxLength = 100;
    this.input.addEventListener("input", () => this.#search(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#next(event.shiftKey ? -1 : 1);
    });
    this.fold = button("Unfold", "Unfold or fold all declarations", () => this.#fold());
    const group = (label, ...children) => element("div", { className: "bar", role: "group", "aria-label": label }, ...children);
    return element(
      "div",
      { className: "bar" },
      group("Panes", ...this.toggles),
      group("Find", this.input, button("↑", "Previous match (Shift+Enter)", () => this.#next(-1)),
        button("↓", "Next match (Enter)", () => this.#next(1))),
      group("Jump to", ...this.#jumps()),
      element("span", { className: "gap" }),
      this.fold,
      button("Copy link", "Copy a link to these lines and panes", () => this.#copy(window.location.href, "the link")),
    );
  }

  #jumps() {
    const pane = this.data.panes[this.code];
    const kinds = pane?.kinds ?? [];
    const lines = (...wanted) => kinds.flatMap((kind, at) => (wanted.includes(kind) ? [at + 1] : []));
    const multiply = kinds.includes("mma") ? "mma" : "fma";
    const jump = (label, key, found) => {
      const made = button(`${label} ${found.length.toLocaleString("en")}`, `Next in ${pane?.name ?? "the code"} (${key})`);
      made.disabled = !found.length;
      made.onclick = () => this.#jump(found, label);
      return [key.toLowerCase(), made];
    };
    const loop = button("Main loop", "The loop that multiplies (L)", () => {
      this.#show(this.code, pane.loop[0]);
      this.#say(`Main loop: ${pane.name} ${pane.loop.join(" to ")}`);
    });
    loop.disabled = !pane?.loop;
    const all = [
      ["l", loop],
      jump(multiply === "mma" ? "MMA" : "FMA", "M", lines(multiply)),
      jump("Barriers", "B", lines("barrier")),
      jump(kinds.includes("local") && !kinds.includes("spill") ? "Local memory" : "Spills", "S", lines("spill", "local")),
    ];
    this.keys = Object.fromEntries(all);
    return all.map(([, made]) => made);
  }

  #head(pane, number) {
    const size = element("span", { className: "size" });
    size.textContent = counted(pane.lines, "line");
    if (pane.registers.length) size.textContent += `, at most ${Math.max(...pane.registers)} registers in use`;
    return element(
      "div",
      { className: "head" },
      element("strong", { textContent: pane.name }),
      size,
      button("Copy", `Copy all of ${pane.name}`, () => this.#copy(pane.text, `all of ${pane.name}`)),
      button("Download", `Download ${pane.file}`, () => download(pane.file, pane.text)),
    );
  }

  /** What the address says: a search, and lines. */
  #open() {
    this.input.value = read("find");
    this.#search(this.input.value, false);
    const place = placeInAddress();
    const number = place ? this.index(place.pane) : -1;
    if (number >= 0 && place.first <= this.data.panes[number].lines) this.#show(number, place.first, place.last);
  }

  // ---- What the reader does

  #toggle(number, toggle) {
    const box = this.boxes[number];
    box.hidden = !box.hidden;
    toggle.setAttribute("aria-pressed", !box.hidden);
    const visible = this.data.panes.filter((_, at) => !this.boxes[at].hidden).map((pane) => pane.name);
    write({ panes: visible.join() === this.usual.join() ? "" : visible.join() });
    if (!box.hidden) {
      this.panes[number].view.requestMeasure();
      if (this.selected) this.#light(this.selected.number, this.selected.lines, true);
    }
  }

  #select(number, first, last) {
    this.#stopHover();
    const lines = Array.from({ length: Math.min(last - first + 1, 2000) }, (_, at) => first + at);
    this.selected = { number, lines };
    const name = this.data.panes[number].name;
    write({ line: `${name}:${first}${last > first ? `-${last}` : ""}` });
    this.#light(number, lines, true);
    this.#describe(number, first, last);
  }

  #hover(number, line) {
    if (this.hovered?.number === number && this.hovered.line === line) return;
    this.#stopHover();
    this.hovered = { number, line };
    this.timer = setTimeout(() => {
      if (line === null) {
        if (this.selected) this.#light(this.selected.number, this.selected.lines, false);
        else this.#light(number, [], false);
      } else if (this.links.chain(number, line).length || this.data.panes[number].ptx[line - 1]) {
        this.#light(number, [line], true);
      }
    }, DWELL_MS);
  }

  #stopHover() {
    clearTimeout(this.timer);
    this.hovered = null;
  }

  #light(number, lines, reveals) {
    const lit = this.links.of(number, lines);
    this.panes.forEach((pane, at) => {
      pane.light(lit[at]);
      if (reveals && at !== number && !this.boxes[at].hidden) pane.reveal(lit[at]);
    });
    this.lit = lit;
  }

  #show(number, first, last = first) {
    if (this.boxes[number].hidden) this.#toggle(number, this.toggles[number]);
    this.panes[number].select(first, last);
    this.panes[number].view.focus();
  }

  #jump(lines, label) {
    const view = this.panes[this.code].view;
    const now = view.state.doc.lineAt(view.state.selection.main.head).number;
    const isThere = this.selected?.number === this.code;
    const at = Math.max(lines.findIndex((line) => line > now || (!isThere && line === now)), 0);
    this.#show(this.code, lines[at]);
    this.#say(`${label} ${at + 1} of ${lines.length}: ${this.said}`);
  }

  #key(event) {
    if (event.altKey || event.shiftKey) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "f") {
      event.preventDefault();
      this.input.focus();
      this.input.select();
    } else if (!event.ctrlKey && !event.metaKey && this.keys[event.key] && !this.keys[event.key].disabled) {
      event.preventDefault();
      this.keys[event.key].click();
    }
  }

  #fold() {
    const closes = this.fold.textContent === "Fold";
    this.panes.forEach((pane) => pane.fold(closes));
    this.fold.textContent = closes ? "Unfold" : "Fold";
  }

  // ---- Searching

  #search(wanted, writes = true) {
    this.found = search(this.texts, wanted);
    this.current = -1;
    if (writes) write({ find: wanted });
    this.panes.forEach((pane, at) => pane.mark(this.found[at], -1));
    if (!wanted) return this.#say(this.data.hint);
    const total = this.found.reduce((sum, ranges) => sum + ranges.length, 0);
    const parts = this.data.panes.map((pane, at) => `${pane.name} ${this.found[at].length.toLocaleString("en")}`);
    return this.#say(`${total === 1 ? "1 match" : `${total.toLocaleString("en")} matches`}: ${parts.join(", ")}`);
  }

  /** The next match, over all panes that are shown. */
  #next(step) {
    const all = this.found.flatMap((ranges, number) => (this.boxes[number].hidden ? [] : ranges.map((_, at) => [number, at])));
    if (!all.length) return;
    this.current = (this.current + step + (this.current < 0 && step < 0 ? 1 : 0) + all.length) % all.length;
    const [number, at] = all[this.current];
    this.panes.forEach((pane, each) => pane.mark(this.found[each], each === number ? at : -1));
    const pane = this.panes[number];
    pane.select(pane.view.state.doc.lineAt(this.found[number][at][0]).number);
    this.#say(`Match ${this.current + 1} of ${all.length.toLocaleString("en")}: ${this.said}`);
  }

  // ---- Saying

  #describe(number, first, last) {
    const pane = this.data.panes[number];
    if (last > first) return this.#say(`${pane.name} ${first} to ${last}`);
    const chain = this.links.chain(number, first);
    const parts = [`${pane.name} ${first}`];
    if (pane.kinds[first - 1]) parts.push(KINDS[pane.kinds[first - 1]][1]);
    if (pane.registers[first - 1]) parts.push(`${pane.registers[first - 1]} registers in use`);
    if (pane.name !== SOURCE && chain.length) parts.push(`from source line ${chain.join(", in line ")}`);
    this.data.panes.forEach((other, at) => {
      if (at !== number && other.name !== SOURCE && this.lit[at].size) parts.push(counted(this.lit[at].size, `${other.name} line`));
    });
    return this.#say(parts.join(" · "));
  }

  #say(text) {
    this.said = text;
    this.status.textContent = text;
  }

  async #copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      this.#say(`Copied ${what}.`);
    } catch {
      this.#say(`The browser does not allow copying; select the text and copy it.`);
    }
  }

  destroy() {
    this.#stopHover();
    this.panes.forEach((pane) => pane.destroy());
    this.element.remove();
    this.style.remove();
  }
}

function download(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
