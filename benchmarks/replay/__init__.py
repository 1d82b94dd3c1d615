"""Replays real traffic against policies: what each would have compiled, and what that would have cost.

- ``traces`` -- requests from CSV
- ``batching`` -- an inference server in small: requests become steps of m tokens
- ``kernels`` -- what could serve a model's GEMMs, with predicted times
- ``costs`` -- seconds and bytes of a compile
- ``machines`` -- which kernels are there during a replay, and what is compiled when
- ``policies`` -- those that are compared, by name
- ``optimum`` -- the best choice in hindsight
- ``simulation`` -- plays them, and adds up
- ``budget`` -- what to compile ahead when not all can be
- ``evictions``, ``stored_traces`` -- orders of eviction, played on a store's own requests
- ``replay_results`` -- the report of a replay, one HTML file
"""

ORACLE = "oracle"
"""The best choice in hindsight, compiled before the server is ready; it comes last, and is no policy."""
