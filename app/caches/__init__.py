"""The pages on other frameworks' caches: the scan behind them, and the tabs of Storage about them."""
