"""From rows to what is shown: tables, figures and words, a module for each page."""
