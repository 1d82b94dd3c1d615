// What the address of the page says of this view: ?line=SASS:120-130&panes=Source,SASS&find=mma

/** The place that the address names, or null. */
export function placeInAddress() {
  const found = /^([A-Za-z]+):(\d{1,7})(?:-(\d{1,7}))?$/.exec(read("line"));
  if (!found) return null;
  const first = Number(found[2]);
  return { pane: found[1], first, last: Math.max(first, Number(found[3] ?? first)) };
}

export const read = (name) => new URLSearchParams(window.location.search).get(name) ?? "";

/** Writes values into the address; empty ones leave it. The page is not asked for again. */
export function write(values) {
  const url = new URL(window.location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href !== window.location.href) window.history.replaceState(window.history.state, "", url);
}
