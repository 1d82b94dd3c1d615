// What Streamlit calls when there is code to show, again when that changes. What it returns ends the view.
import { CodeView } from "./view.js";

const views = new WeakMap();

export default function ({ data, parentElement }) {
  views.get(parentElement)?.destroy(); // when the reader changes the theme, Streamlit calls again and ends nothing
  const view = new CodeView(parentElement, data);
  views.set(parentElement, view);
  return () => view.destroy();
}
