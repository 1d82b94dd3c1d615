// One text in an editor that cannot be typed into: highlighted, coloured by line of the source, with what its
// instructions are and how many registers they need. All text goes through the editor, which never reads it as HTML.
import { defaultKeymap } from "@codemirror/commands";
import {
  HighlightStyle,
  codeFolding,
  foldEffect,
  foldGutter,
  foldKeymap,
  foldService,
  foldedRanges,
  syntaxHighlighting,
  unfoldEffect,
} from "@codemirror/language";
import { EditorState, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  EditorView,
  GutterMarker,
  ViewPlugin,
  drawSelection,
  gutter,
  gutterLineClass,
  highlightActiveLine,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { LANGUAGES } from "./languages.js";
import { covering, registersIn } from "./values.js";

const STYLE = HighlightStyle.define([
  { tag: tags.comment, class: "t-comment" },
  { tag: [tags.keyword, tags.modifier, tags.controlKeyword, tags.operatorKeyword], class: "t-keyword" },
  { tag: [tags.string, tags.special(tags.string)], class: "t-string" },
  { tag: [tags.number, tags.bool, tags.null], class: "t-number" },
  { tag: tags.variableName, class: "t-variable" },
  { tag: [tags.typeName, tags.standard(tags.name), tags.className], class: "t-type" },
  { tag: [tags.labelName, tags.definition(tags.variableName)], class: "t-label" },
  { tag: [tags.meta, tags.processingInstruction], class: "t-meta" },
  { tag: tags.atom, class: "t-atom" },
]);

/** Of each class of instruction the letter in the margin, and its name. */
export const KINDS = {
  mma: ["M", "tensor core"],
  fma: ["F", "multiply-add"],
  copy: ["A", "asynchronous copy"],
  global: ["G", "global memory"],
  shared: ["S", "shared memory"],
  spill: ["R", "spilled register"],
  local: ["L", "local memory"],
  barrier: ["B", "barrier or wait"],
  branch: ["J", "branch"],
};

const setLit = StateEffect.define();
const setFound = StateEffect.define();
const setValue = StateEffect.define();

const lineClass = (name) => Decoration.line({ class: name });
const COLOURS = Array.from({ length: 8 }, (_, at) => lineClass(`c c${at}`));
const LIT = lineClass("lit");
const FOUND = Decoration.mark({ class: "found" });
const CURRENT = Decoration.mark({ class: "found current" });
const REGISTER = Decoration.mark({ class: "register" });

class Mark extends GutterMarker {
  constructor(text, className, title, share) {
    super();
    Object.assign(this, { text, className, title, share });
  }
  eq(other) {
    return other.text === this.text && other.className === this.className;
  }
  toDOM() {
    const span = document.createElement("span");
    span.className = this.className;
    span.textContent = this.text;
    if (this.title) span.title = this.title;
    if (this.share !== undefined) span.style.setProperty("--share", `${this.share}%`);
    return span;
  }
}

function kindGutter(kinds) {
  const marks = Object.fromEntries(
    Object.entries(KINDS).map(([kind, [letter, name]]) => [kind, new Mark(letter, `kind k-${kind}`, name)]),
  );
  return gutter({
    class: "kinds",
    lineMarker: (view, line) => marks[kinds[view.state.doc.lineAt(line.from).number - 1]] ?? null,
    initialSpacer: () => marks.mma,
  });
}

// The margin of the main loop has a line along it.
class LoopMark extends GutterMarker {
  elementClass = "loop";
}

const loopMargin = ([first, last]) =>
  gutterLineClass.compute(["doc"], (state) => {
    const builder = new RangeSetBuilder();
    const mark = new LoopMark();
    for (let line = first; line <= last; line += 1) builder.add(state.doc.line(line).from, state.doc.line(line).from, mark);
    return builder.finish();
  });

/** A margin with a number for each line, over a bar of its share of `most`. Lines with a number below `least` have none. */
function numberGutter(name, numbers, least, most, says) {
  const mark = (number) => new Mark(`${number}`, "number", says(number), (100 * number) / most);
  return gutter({
    class: name,
    lineMarker(view, line) {
      const number = numbers[view.state.doc.lineAt(line.from).number - 1];
      return number >= least ? mark(number) : null;
    },
    initialSpacer: () => mark(Math.max(...numbers)),
  });
}

/** A fixed set of decorations of whole lines. */
function lineDecorations(state, lines, of) {
  const builder = new RangeSetBuilder();
  for (const number of lines) {
    const decoration = of(number);
    if (decoration) builder.add(state.doc.line(number).from, state.doc.line(number).from, decoration);
  }
  return builder.finish();
}

const litField = StateField.define({
  create: () => Decoration.none,
  update(value, transaction) {
    for (const effect of transaction.effects) {
      if (!effect.is(setLit)) continue;
      const lines = [...effect.value].sort((a, b) => a - b);
      return lineDecorations(transaction.state, lines, () => LIT);
    }
    return value;
  },
  provide: (field) => EditorView.decorations.from(field),
});

// One value: its lines, and in them its register.
const valueField = StateField.define({
  create: () => Decoration.none,
  update(decorations, transaction) {
    const effect = transaction.effects.find((each) => each.is(setValue));
    if (!effect) return decorations;
    const builder = new RangeSetBuilder();
    for (const number of effect.value?.lines ?? []) {
      const { from, text } = transaction.state.doc.line(number);
      const role = effect.value.defined.has(number) ? "defines" : "uses";
      builder.add(from, from, lineClass(`value ${role}`));
      const mention = covering(text, effect.value.register);
      for (const [name, start, end] of registersIn(text))
        if (name === mention) builder.add(from + start, from + end, REGISTER);
    }
    return builder.finish();
  },
  provide: (field) => EditorView.decorations.from(field),
});

// What a search found: only what is in view is marked, however much there is.
const foundField = StateField.define({
  create: () => ({ ranges: [], current: -1 }),
  update(value, transaction) {
    for (const effect of transaction.effects) if (effect.is(setFound)) return effect.value;
    return value;
  },
});

const foundPlugin = ViewPlugin.fromClass(
  class {
    constructor(view) {
      this.decorations = this.build(view);
    }
    update(update) {
      const changed = update.state.field(foundField) !== update.startState.field(foundField);
      if (update.viewportChanged || changed) this.decorations = this.build(update.view);
    }
    build(view) {
      const { ranges, current } = view.state.field(foundField);
      const builder = new RangeSetBuilder();
      for (const { from, to } of view.visibleRanges) {
        let low = 0, high = ranges.length;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (ranges[middle][1] <= from) low = middle + 1;
          else high = middle;
        }
        for (; low < ranges.length && ranges[low][0] < to; low += 1)
          builder.add(ranges[low][0], ranges[low][1], low === current ? CURRENT : FOUND);
      }
      return builder.finish();
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

/** One pane's editor. */
export class Pane {
  /**
   * @param pane the text and what is known of its lines.
   * @param colour of a line, 0 to 7, or undefined.
   * @param on what to call: select(first, last), click(line, text, offset) and hover(line or null).
   */
  constructor(pane, root, parent, colour, on) {
    this.pane = pane;
    this.lines = pane.text.split("\n");
    this.moved = false;
    const folds = new Map(pane.folds.map(([first, last]) => [first, last]));
    const state = EditorState.create({
      doc: pane.text,
      extensions: [
        EditorState.readOnly.of(true),
        EditorView.contentAttributes.of({ "aria-label": `${pane.name} code`, "aria-readonly": "true", tabindex: "0" }),
        lineNumbers(),
        pane.loop ? loopMargin(pane.loop) : [],
        ...(pane.kinds.some(Boolean) ? [kindGutter(pane.kinds)] : []),
        pane.registers.length
          ? numberGutter("pressure", pane.registers, 1, 255, (count) => `${count} registers hold a value`)
          : [],
        pane.stalls.length
          ? numberGutter("stalls", pane.stalls, 0, 15, (cycles) => `the next instruction comes ${cycles} cycles later`)
          : [],
        codeFolding({ placeholderDOM: placeholder }),
        foldGutter({ openText: "▾", closedText: "▸" }),
        foldService.of((at, start) => {
          const last = folds.get(at.doc.lineAt(start).number);
          return last ? { from: at.doc.lineAt(start).to, to: at.doc.line(Math.min(last, at.doc.lines)).to } : null;
        }),
        drawSelection(),
        highlightActiveLine(),
        syntaxHighlighting(STYLE),
        LANGUAGES[pane.language] ?? [],
        EditorView.decorations.of((view) => this.#colours(view, colour)),
        litField,
        valueField,
        foundField,
        foundPlugin,
        keymap.of([...foldKeymap, ...defaultKeymap]),
        EditorView.updateListener.of((update) => {
          if (!update.selectionSet || this.quiet) return;
          const { from, to } = update.state.selection.main;
          const line = update.state.doc.lineAt(from);
          on.select(line.number, update.state.doc.lineAt(to).number);
          if (from === to && update.transactions.some((each) => each.isUserEvent("select.pointer")))
            on.click(line.number, line.text, from - line.from);
        }),
        EditorView.domEventHandlers({
          mousemove: (event, view) => {
            const at = view.posAtCoords({ x: event.clientX, y: event.clientY }, false);
            on.hover(at === null ? null : view.state.doc.lineAt(at).number);
          },
          mouseleave: () => on.hover(null),
        }),
      ],
    });
    this.view = new EditorView({ state, parent, root });
    this.fold(true);
  }

  #colours(view, colour) {
    const all = Array.from({ length: view.state.doc.lines }, (_, at) => at + 1);
    this.coloured ??= lineDecorations(view.state, all, (line) => COLOURS[colour(line)]);
    return this.coloured;
  }

  /** Folds or unfolds all declarations. */
  fold(closed) {
    const { doc } = this.view.state;
    const effect = closed ? foldEffect : unfoldEffect;
    const ranges = this.pane.folds.map(([first, last]) => ({
      from: doc.line(first).to,
      to: doc.line(Math.min(last, doc.lines)).to,
    }));
    this.view.dispatch({ effects: ranges.map((range) => effect.of(range)) });
  }

  light(lines) {
    this.view.dispatch({ effects: setLit.of(lines) });
  }

  /** Scrolls to the nearest of these lines, unless one is in view. */
  reveal(lines) {
    if (!lines.size) return;
    const { view } = this;
    const box = view.scrollDOM.getBoundingClientRect();
    const top = view.lineBlockAtHeight(view.scrollDOM.scrollTop);
    const bottom = view.lineBlockAtHeight(view.scrollDOM.scrollTop + box.height - 12);
    const first = view.state.doc.lineAt(top.from).number, last = view.state.doc.lineAt(bottom.from).number;
    for (const line of lines) if (line >= first && line <= last) return;
    const middle = (first + last) / 2;
    const nearest = [...lines].reduce((a, b) => (Math.abs(b - middle) < Math.abs(a - middle) ? b : a));
    this.scrollTo(nearest);
  }

  /** Scrolls to a line, and leaves the page where it is. */
  scrollTo(line, share = 0.5) {
    const { view } = this, { from } = view.state.doc.line(line);
    view.dispatch({ effects: this.#unfold(from) });
    view.requestMeasure({
      read: () => view.lineBlockAt(from).top - share * view.scrollDOM.clientHeight,
      write: (top) => (view.scrollDOM.scrollTop = top),
    });
  }

  /** Marks the lines of a value, or of none. */
  follow(value) {
    this.view.dispatch({ effects: setValue.of(value) });
  }

  /** Puts the cursor on lines, as a reader would. */
  select(first, last = first) {
    const { doc } = this.view.state;
    const one = doc.line(Math.min(first, doc.lines)), other = doc.line(Math.min(last, doc.lines));
    const selection = first === last ? { anchor: one.from } : { anchor: one.from, head: other.to };
    this.view.dispatch({
      selection,
      effects: [...this.#unfold(one.from), EditorView.scrollIntoView(one.from, { y: "center" })],
    });
  }

  #unfold(position) {
    const effects = [];
    foldedRanges(this.view.state).between(position, position, (from, to) => {
      if (from < position) effects.push(unfoldEffect.of({ from, to }));
    });
    return effects;
  }

  mark(ranges, current) {
    this.view.dispatch({ effects: setFound.of({ ranges, current }) });
  }

  destroy() {
    this.view.destroy();
  }
}

function placeholder(view, onclick) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "folded";
  button.textContent = "…";
  button.setAttribute("aria-label", "unfold declarations");
  button.onclick = onclick;
  return button;
}
