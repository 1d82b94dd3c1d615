// The view: a bar with what acts on all panes, a line that says what is lit, and the panes.
import { read, placeInAddress, write } from "./address.js";
import { Links, PTX, SASS, SOURCE } from "./links.js";
import { KINDS, Pane } from "./pane.js";
import { lowered, search } from "./search.js";
import { CSS } from "./theme.js";
import { Values } from "./values.js";

const DWELL_MS = 120;
const NARROW_PX = 900; // below, panes are shown one at a time
const ESTIMATE =
  "Not measured: the sum of the stalls that the compiler wrote into these instructions, the cycles from each to the next one " +
  "of its warp. Waiting for memory, barriers and other warps comes on top; instructions that are skipped are counted.";
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
    this.values = new Values(data.panes[this.code]?.values ?? []);
    this.element = element("div", { className: "code-view" });
    this.style = element("style", { textContent: CSS });
    root.append(this.style, this.element);
    this.#build(root);
    this.resized = new ResizeObserver(() => this.#layout());
    this.resized.observe(this.element);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isFull) this.#fill();
    });
    this.#open();
  }

  index = (name) => this.data.panes.findIndex((pane) => pane.name === name);

  // ---- Building

  #build(root) {
    const shown = read("panes").split(",").filter((name) => this.index(name) >= 0);
    const usual = FIRST_SHOWN.filter((name) => this.index(name) >= 0);
    this.usual = usual.length ? usual : [this.data.panes[0].name];
    this.visible = new Set((shown.length ? shown : this.usual).map(this.index));
    this.single = shown.length || this.code < 0 ? [...this.visible][0] : this.code;
    const box = element("div", { className: "panes" });
    this.status = element("div", { className: "status", role: "status" });
    this.element.append(this.#bar(), this.status, ...this.#estimate(), box);
    this.boxes = this.data.panes.map((pane, number) => {
      const section = element("section", { className: `pane ${pane.language}`, "aria-label": pane.name });
      section.append(this.#head(pane, number));
      box.append(section);
      return section;
    });
    this.panes = this.data.panes.map((pane, number) => {
      const colour = (line) => this.links.colour.get(this.links.chain(number, line)[0]);
      const made = new Pane(pane, root, this.boxes[number], colour, {
        select: (first, last) => this.#select(number, first, last),
        click: (...place) => number === this.code && this.#follow(this.values.at(...place)),
        hover: (line) => this.#hover(number, line),
      });
      made.view.contentDOM.addEventListener("keydown", (event) => this.#key(event));
      return made;
    });
    this.#layout();
  }

  #bar() {
    this.toggles = this.data.panes.map((pane, number) =>
      button(pane.name, `Show or hide ${pane.name}`, () => this.#toggle(number)),
    );
    this.input = element("input", { type: "search", placeholder: "Find in all panes", "aria-label": "Find in all panes" });
    this.input.maxLength = 100;
    this.input.addEventListener("input", () => this.#search(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#next(event.shiftKey ? -1 : 1);
    });
    this.full = button("Full window", "Fill the window, or leave it (F, Escape)", () => this.#fill());
    this.fold = button("Unfold", "Unfold or fold all declarations", () => this.#fold());
    const group = (label, ...children) => element("div", { className: "bar", role: "group", "aria-label": label }, ...children);
    return element(
      "div",
      { className: "bar" },
      group("Panes", ...this.toggles),
      group("Find", this.input, button("↑", "Previous match (Shift+Enter)", () => this.#next(-1)),
        button("↓", "Next match (Enter)", () => this.#next(1))),
      group("Jump to", ...this.#jumps()),
      ...(this.data.panes[this.code]?.values.length ? [group("Value", ...this.#value())] : []),
      element("span", { className: "gap" }),
      this.full,
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
    this.keys = Object.fromEntries([...all, ["f", this.full]]);
    return all.map(([, made]) => made);
  }

  #value() {
    const title = "Follow the value of the register at the cursor, or stop (V). A click on a register does so too";
    this.following = button("Value", title, () => this.#follow(this.value ? null : this.#valueAtCursor()));
    const step = (by) => this.#jump(this.value.lines, `Value ${this.value.register}`, by);
    this.steps = [
      button("↑", "Previous definition or use of the value (P)", () => step(-1)),
      button("↓", "Next definition or use of the value (N)", () => step(1)),
    ];
    for (const made of this.steps) made.disabled = true;
    Object.assign(this.keys, { v: this.following, p: this.steps[0], n: this.steps[1] });
    return [this.following, ...this.steps];
  }

  /** The estimated cycles of the main loop, by class of instruction. */
  #estimate() {
    const rows = this.data.panes[this.code]?.cycles ?? [];
    if (!rows.length) return [];
    const [count, cycles] = [1, 2].map((at) => rows.reduce((sum, row) => sum + row[at], 0));
    const classes = rows.map(([kind, some, of]) =>
      element("li", { textContent: `${KINDS[kind]?.[1] ?? "other"}: ${some} in ${counted(of, "cycle")} (${Math.round((100 * of) / (cycles || 1))}%)` }),
    );
    const summary = `Main loop: ${counted(count, "instruction")}, about ${counted(cycles, "cycle")} a round of one warp (estimate)`;
    const children = [["summary", summary], ["p", ESTIMATE]].map(([tag, textContent]) => element(tag, { textContent }));
    return [element("details", { className: "estimate" }, ...children, element("ul", {}, ...classes))];
  }

  #head(pane, number) {
    let about = counted(pane.lines, "line");
    if (pane.registers.length) about += ` · margin: registers in use (at most ${Math.max(...pane.registers)})`;
    if (pane.stalls.length) about += ", cycles to the next instruction";
    return element(
      "div",
      { className: "head" },
      element("strong", { textContent: pane.name }),
      element("span", { className: "size", textContent: about, title: about }),
      button("Copy", `Copy all of ${pane.name}`, () => this.#copy(pane.text, `all of ${pane.name}`)),
      button("Download", `Download ${pane.file}`, () => download(pane.file, pane.text)),
    );
  }

  /** What the address says: a search, and lines; else the main loop. */
  #open() {
    this.input.value = read("find");
    this.#search(this.input.value, false);
    const place = placeInAddress();
    const number = place ? this.index(place.pane) : -1;
    if (number >= 0 && place.first <= this.data.panes[number].lines) {
      this.#show(number, place.first, place.last);
      return;
    }
    this.panes.forEach((_, at) => this.#home(at));
    const { loop, name } = this.data.panes[this.code] ?? {};
    if (loop && !this.input.value) this.#say(`${name} opens at the main loop, lines ${loop.join(" to ")}. ${this.data.hint}`);
  }

  /** Scrolls a pane to its main loop; the source to what the loop multiplies in. */
  #home(number) {
    const { loop, name } = this.data.panes[number];
    if (loop) this.panes[number].scrollTo(loop[0], 0.05);
    const made = this.data.panes[this.code];
    if (name !== SOURCE || !made?.loop) return;
    const kind = made.kinds.includes("mma") ? "mma" : "fma";
    const chain = this.links.chain(this.code, made.kinds.indexOf(kind, made.loop[0] - 1) + 1);
    if (chain.length) this.panes[number].scrollTo(chain[1] ?? chain[0]); // a function that multiplies: where it is called
  }

  // ---- What the reader does

  /** Shows the panes that the reader chose; one at a time where there is no room for two. */
  #layout() {
    this.isNarrow = this.element.clientWidth < NARROW_PX;
    this.element.classList.toggle("narrow", this.isNarrow);
    this.boxes.forEach((box, at) => {
      const isShown = this.isNarrow ? at === this.single : this.visible.has(at);
      this.toggles[at].setAttribute("aria-pressed", isShown);
      if (box.hidden !== isShown) return;
      box.hidden = !isShown;
      if (!isShown) return;
      this.panes[at].view.requestMeasure();
      if (this.selected) this.#light(this.selected.number, this.selected.lines, true);
      else this.#home(at);
    });
  }

  #toggle(number) {
    this.single = number;
    if (!this.isNarrow) {
      if (!this.visible.delete(number)) this.visible.add(number);
      const names = this.data.panes.filter((_, at) => this.visible.has(at)).map((pane) => pane.name);
      write({ panes: names.join() === this.usual.join() ? "" : names.join() });
    }
    this.#layout();
  }

  /** Fills the window with the view, above all else of the page, or puts it back. */
  #fill() {
    this.isFull = !this.isFull;
    this.full.setAttribute("aria-pressed", this.isFull);
    this.element.classList.toggle("full", this.isFull);
    this.element.popover = this.isFull ? "manual" : null;
    if (this.isFull) this.element.showPopover();
    // What is covered is out of reach.
    for (let at = this.element; at && at !== document.body; at = at.parentElement ?? at.getRootNode().host)
      for (const other of at.parentNode.children) if (other !== at) other.inert = this.isFull;
    this.full.focus();
  }

  #valueAtCursor() {
    const line = this.#line();
    return this.values.at(line.number, line.text, this.panes[this.code].view.state.selection.main.head - line.from, true);
  }

  #follow(value) {
    if (value === undefined) return; // the reader clicked beside a register
    this.value = value;
    this.panes[this.code].follow(value);
    this.following.textContent = value ? `Value ${value.register}` : "Value";
    this.following.setAttribute("aria-pressed", Boolean(value));
    for (const made of this.steps) made.disabled = !value;
    const some = (lines) => [...lines].slice(0, 8).join(", ") + (lines.size > 8 ? ", …" : "") || "no line";
    if (value) this.#say(`${value.register}: defined in ${some(value.defined)} · used in ${some(value.used)}`);
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
    if (this.boxes[number].hidden) this.#toggle(number);
    this.panes[number].select(first, last);
    this.panes[number].view.focus();
  }

  /** The line of machine code where the cursor is. */
  #line() {
    const { state } = this.panes[this.code].view;
    return state.doc.lineAt(state.selection.main.head);
  }

  /** Goes to the next, or with -1 to the previous of these lines; from the last to the first. */
  #jump(lines, label, by = 1) {
    const now = this.#line().number;
    const isThere = this.selected?.number === this.code;
    const next = lines.findIndex((line) => line > now || (!isThere && line === now));
    const at = by > 0 ? Math.max(next, 0) : lines.findLastIndex((line) => line < now);
    this.#show(this.code, lines.at(at));
    this.#say(`${label} ${at < 0 ? lines.length : at + 1} of ${lines.length}: ${this.said}`);
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
    const { register, defined, used } = (number === this.code && this.value) || {};
    if (defined?.has(first)) parts.push(`defines ${register}`);
    if (used?.has(first)) parts.push(`uses ${register}`);
    if (pane.registers[first - 1]) parts.push(`${pane.registers[first - 1]} registers in use`);
    if (pane.stalls[first - 1] >= 0) parts.push(`next instruction after ${counted(pane.stalls[first - 1], "cycle")}`);
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
    this.resized.disconnect();
    if (this.isFull) this.#fill();
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
