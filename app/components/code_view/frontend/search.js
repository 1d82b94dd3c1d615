// The places of a text in all panes, in any case.

/** Of each pane the ranges [from, to] of its text. */
export function search(texts, wanted) {
  const needle = wanted.toLowerCase();
  return texts.map((text) => {
    const ranges = [];
    if (!needle) return ranges;
    for (let at = text.indexOf(needle); at >= 0; at = text.indexOf(needle, at + needle.length))
      ranges.push([at, at + needle.length]);
    return ranges;
  });
}

// A few letters become longer in lower case; then their lines would be off. Such letters stay as they are.
export const lowered = (text) => {
  const lower = text.toLowerCase();
  return lower.length === text.length ? lower : text.replace(/[A-Z]+/g, (part) => part.toLowerCase());
};
