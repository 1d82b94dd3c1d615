// The estimated cycles of the main loop, by class of instruction; and how elements are made.
import { KINDS } from "./pane.js";

/** An element with properties and children; text is text, never HTML. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SOURCE_OF_ESTIMATE =
  "An estimate, not measured: the sum of the stalls that the compiler wrote into these instructions, the cycles from each to " +
  "the next one of the same warp. Waiting for memory, for barriers and for other warps comes on top; instructions that are " +
  "skipped are counted.";

/** The estimate for a pane with cycles, as a list of no or one element. */
export function estimate(pane) {
  if (!pane?.cycles.length) return [];
  const [count, cycles] = [1, 2].map((at) => pane.cycles.reduce((sum, row) => sum + row[at], 0));
  const cells = (tag, row) => element("tr", {}, ...row.map((text) => element(tag, { textContent: text })));
  const rows = pane.cycles.map(([kind, instructions, of]) =>
    cells("td", [KINDS[kind]?.[1] ?? "other", instructions.toLocaleString("en"), of.toLocaleString("en"), `${Math.round((100 * of) / Math.max(cycles, 1))}%`]),
  );
  const head = element("thead", {}, cells("th", ["Class", "Instructions", "Cycles", "Share"]));
  const total = `Main loop: ${count.toLocaleString("en")} instructions, about ${cycles.toLocaleString("en")} cycles a round of one warp (estimate)`;
  return [
    element(
      "details",
      { className: "estimate" },
      element("summary", { textContent: total }),
      element("table", {}, head, element("tbody", {}, ...rows)),
      element("p", { textContent: SOURCE_OF_ESTIMATE }),
    ),
  ];
}
