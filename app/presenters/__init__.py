"""From rows to what is shown on pages: tables, figures and words."""
