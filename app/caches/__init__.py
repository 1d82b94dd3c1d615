"""The pages on other frameworks' caches: the scan behind them, and the parts of *Caches*."""
