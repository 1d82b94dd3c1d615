// What Streamlit calls when there is code to show, again when that changes. What it returns ends the view.
import { CodeView } from "./view.js";

export default function ({ data, parentElement }) {
  const view = new CodeView(parentElement, data);
  return () => view.destroy();
}
