// The path of one value: the instructions that define it, and those that use it.

const REGISTER = /\b(?:UR|UP|R|P)\d+\b/g;

/** The registers that a line names: [name, from, to] within the line. */
export const registersIn = (text) => [...text.matchAll(REGISTER)].map((found) => [found[0], found.index, found.index + found[0].length]);

/** How a line names a register: an operand of several registers by its first, the next one at or below. */
export function covering(text, register) {
  const [, file, number] = /^(\D+)(\d+)$/.exec(register);
  const numbers = registersIn(text).flatMap(([name]) => (name.replace(/\d+/, "") === file ? Number(name.slice(file.length)) : []));
  return `${file}${Math.max(...numbers.filter((each) => each <= number))}`;
}

export class Values {
  /** @param values [register, lines that define it, lines that use it] of each. */
  constructor(values) {
    this.byLine = new Map();
    for (const [register, defined, used] of values) {
      const value = { register, defined: new Set(defined), used: new Set(used) };
      value.lines = [...new Set([...defined, ...used])].sort((a, b) => a - b);
      for (const line of value.lines) {
        if (!this.byLine.has(line)) this.byLine.set(line, []);
        this.byLine.get(line).push(value);
      }
    }
  }

  /** The value of a register in a line, or undefined. If the line reads it and writes it anew, the first mention is the new value. */
  of(line, register, isFirst) {
    const found = (this.byLine.get(line) ?? []).filter((value) => value.register === register);
    return found.find((value) => value[isFirst ? "defined" : "used"].has(line)) ?? found[0];
  }

  /** The value at a place in a line's text; elsewhere than on a register that of the first one, if asked for. */
  at(line, text, offset, orFirst = false) {
    const all = registersIn(text);
    const hit = all.find(([, from, to]) => from <= offset && offset <= to) ?? (orFirst ? all.find(([name]) => this.of(line, name, true)) : undefined);
    return hit && this.of(line, hit[0], all.find(([name]) => name === hit[0]) === hit);
  }
}
