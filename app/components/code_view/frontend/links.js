// Which lines belong together. A line of any pane comes from a chain of lines of the source: the line itself, then those
// that it was put into. Lines of machine code also know their line of PTX.

export const SOURCE = "Source", PTX = "PTX", SASS = "SASS";

/** The lines of each pane, from 1, by the line of the source in their chains. */
export class Links {
  constructor(panes, chains) {
    this.panes = panes;
    this.chains = chains; // each distinct chain once; panes have its number for each line
    this.bySource = panes.map((pane) => {
      const lines = new Map();
      pane.chain.forEach((number, at) => {
        for (const source of chains[number]) {
          if (!lines.has(source)) lines.set(source, []);
          lines.get(source).push(at + 1);
        }
      });
      return lines;
    });
    this.ptx = panes.findIndex((pane) => pane.name === PTX);
    this.byPtx = panes.map((pane) => {
      const lines = new Map();
      pane.ptx.forEach((ptx, at) => {
        if (!ptx) return;
        if (!lines.has(ptx)) lines.set(ptx, []);
        lines.get(ptx).push(at + 1);
      });
      return lines;
    });
    // The colour of a line of the source: each that made anything has one.
    const used = new Set();
    panes.forEach((pane) => {
      if (pane.name !== SOURCE) pane.chain.forEach((number) => chains[number].length && used.add(chains[number][0]));
    });
    this.colour = new Map([...used].sort((a, b) => a - b).map((line, at) => [line, at % 8]));
  }

  /** The chain of a line. */
  chain(pane, line) {
    return this.chains[this.panes[pane].chain[line - 1] ?? 0] ?? [];
  }

  /** The lines of every pane that belong to these lines of one: an array of sets. */
  of(pane, lines) {
    const lit = this.panes.map(() => new Set());
    for (const line of lines) {
      lit[pane].add(line);
      const source = this.chain(pane, line)[0];
      if (source) this.bySource.forEach((found, other) => this.#light(lit[other], found.get(source), other, pane, line));
      this.#exact(lit, pane, line);
    }
    return lit;
  }

  #light(lit, lines) {
    for (const line of lines ?? []) lit.add(line);
  }

  // Between PTX and machine code the very instructions are known.
  #exact(lit, pane, line) {
    const { ptx } = this;
    if (ptx < 0) return;
    const from = pane === ptx ? line : this.panes[pane].ptx[line - 1];
    if (!from) return;
    if (pane !== ptx) lit[ptx] = new Set([from]);
    else this.byPtx.forEach((found, other) => {
      if (found.has(from)) lit[other] = new Set(found.get(from));
    });
  }
}
