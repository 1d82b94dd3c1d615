// In a narrow window the menu covers the page, so it closes after a click on one of its links. Streamlit itself closes
// it only on phones, which it recognises by the browser's user agent.
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
