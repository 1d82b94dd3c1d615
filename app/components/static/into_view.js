// Brings what comes next on the page into view, once for each name.
//
// data: to: the name of what it is; empty where nothing is to be brought into view
const SETTLES_MS = 4000;
const TOP = 72; // pixels, which the bar at the top covers
let last = "";

export default function ({ data: [data], parentElement }) {
  if (!data.to || data.to === last) return undefined;
  last = data.to;
  parentElement.style.scrollMarginTop = `${TOP}px`;
  const until = performance.now() + SETTLES_MS;
  let waiting = 0;
  // What comes next is drawn after this, so the page may be too short at first. A reader who scrolls is left alone.
  const step = () => {
    if (Math.abs(parentElement.getBoundingClientRect().top - TOP) > 1) parentElement.scrollIntoView();
    if (performance.now() < until) waiting = setTimeout(step, 150);
  };
  const stop = () => clearTimeout(waiting);
  const moves = ["wheel", "touchmove", "keydown", "pointerdown"];
  moves.forEach((name) => window.addEventListener(name, stop, { once: true, passive: true }));
  step();
  return () => {
    stop();
    moves.forEach((name) => window.removeEventListener(name, stop));
  };
}
