// Closes the menu of a narrow window, which lies over the page, once one of its links was followed. Streamlit itself does
// so only on a phone, by what the browser calls itself.
const NARROW = "(max-width: 768px)"; // where Streamlit lays the menu over the page
const CLOSE = '[data-testid="stSidebar"][data-collapsed="false"] [data-testid="stSidebarCollapseButton"] button';
const FOLLOWED_MS = 50;

export default function () {
  const onClick = (event) => {
    const link = event.target.closest('[data-testid="stSidebarNavLink"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (matchMedia(NARROW).matches) setTimeout(() => document.querySelector(CLOSE)?.click(), FOLLOWED_MS);
  };
  document.addEventListener("click", onClick);
  return () => document.removeEventListener("click", onClick);
}
