// Runs when the dialog is drawn, and again with each new list of links.
const DIALOG = '[role="dialog"]';

export default function ({ data }) {
  // Popovers call themselves dialogs too.
  const dialog = [...document.querySelectorAll(DIALOG)].find((each) => each.querySelector("input"));
  const field = dialog && dialog.querySelector("input");
  if (!field) return undefined;
  const links = () => [...dialog.querySelectorAll("a[href]")];
  const isCurrent = () => field.value.trim() === data.text;

  // Streamlit gives the dialog itself the focus, before or after this runs.
  let tries = 20;
  const focus = () => {
    if (!dialog.contains(document.activeElement) || document.activeElement === dialog) field.focus();
    if (tries-- > 0) focusing = setTimeout(focus, 50);
  };
  let focusing = setTimeout(focus, 0);
  // The browser draws the new links one by one, so the first may be an old one for a moment.
  let waiting = 0;
  const openFirst = () => {
    const first = links()[0];
    if (!data.first || !isCurrent()) return;
    if (first && first.textContent.trim().includes(data.first)) first.click();
    else waiting = setTimeout(openFirst, 30);
  };
  if (field.dataset.opens && isCurrent()) {
    delete field.dataset.opens;
    openFirst();
  }

  const onKey = (event) => {
    const places = [field, ...links()];
    const at = places.indexOf(document.activeElement);
    if (at < 0) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      places[Math.min(places.length - 1, Math.max(0, at + step))].focus();
      event.preventDefault();
    } else if (event.key === "Enter" && at === 0 && field.value.trim()) {
      // The list may still be that of an earlier text.
      if (isCurrent()) openFirst();
      else field.dataset.opens = "yes";
    }
  };
  dialog.addEventListener("keydown", onKey);
  return () => {
    clearTimeout(waiting);
    clearTimeout(focusing);
    dialog.removeEventListener("keydown", onKey);
  };
}
