// Runs when the dialog is drawn, and again with each new list of links.
const DIALOG = '[role="dialog"]';

export default function ({ data: [data] }) {
  // Popovers call themselves dialogs too.
  const findDialog = () => [...document.querySelectorAll(DIALOG)].find((each) => each.querySelector("input"));
  let dialog = null;
  let field = null;
  let waiting = 0;
  let focusing = 0;
  const links = () => [...dialog.querySelectorAll("a[href]")];
  const isCurrent = () => field.value.trim() === data.text;

  // The browser draws the new links one by one, so the first may be an old one for a moment.
  const openFirst = () => {
    if (!data.first || !isCurrent()) return;
    const first = links()[0];
    if (first && first.textContent.includes(data.first)) first.click();
    else waiting = setTimeout(openFirst, 30);
  };
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
  // Streamlit gives a page's own links another address, but shows the page as it was.
  const onClick = (event) => {
    const link = event.target.closest("a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (link.pathname !== location.pathname || link.search === location.search) return;
    event.preventDefault();
    event.stopPropagation();
    location.assign(link.href);
  };
  const begin = () => {
    dialog = findDialog();
    field = dialog ? dialog.querySelector("input") : null;
    if (!field) return false;
    dialog.addEventListener("keydown", onKey);
    dialog.addEventListener("click", onClick, true);
    if (field.dataset.opens && isCurrent()) {
      delete field.dataset.opens;
      openFirst();
    }
    return true;
  };
  // Streamlit draws the dialog before or after this runs, however long that takes, and then gives it the focus itself.
  let [tries, guarded] = [600, 20];
  const focus = () => {
    if (!field && !begin()) {
      if (tries-- > 0) focusing = setTimeout(focus, 50);
      return;
    }
    if (![field, ...links()].includes(document.activeElement)) field.focus();
    if (guarded-- > 0) focusing = setTimeout(focus, 50);
  };
  focus();
  return () => {
    clearTimeout(waiting);
    clearTimeout(focusing);
    if (!dialog) return;
    dialog.removeEventListener("keydown", onKey);
    dialog.removeEventListener("click", onClick, true);
  };
}
