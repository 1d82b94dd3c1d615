"""Exports the statistics of a store to Prometheus, in its text format.

    python examples/prometheus_exporter.py --file /var/lib/node_exporter/gemm_cache.prom   # once; for a timer
    python examples/prometheus_exporter.py --port 9469                                     # http://127.0.0.1:9469/metrics

The counts are those of all processes since the store exists, so a restart resets no counter.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from cache_engine import Cache, GemmCacheError, open_cache
from cache_engine.types import Statistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(stats: Statistics) -> str:
    """The statistics as text. Prometheus wants seconds and bytes; ours are milliseconds and bytes."""
    totals = stats.totals
    lines: list[str] = []

    def add(name: str, kind: str, text: str, values: float | Mapping[str, float]) -> None:
        lines.extend((f"# HELP gemm_cache_{name} {text}", f"# TYPE gemm_cache_{name} {kind}"))
        if isinstance(values, Mapping):
            lines.extend(f'gemm_cache_{name}{{tier="{tier}"}} {value}' for tier, value in sorted(values.items()))
        else:
            lines.append(f"gemm_cache_{name} {values}")

    add("hits_total", "counter", "Lookups served, by tier.", totals.hits)
    add("misses_total", "counter", "Lookups that no tier served.", totals.misses)
    add("compiles_total", "counter", "Kernels compiled.", totals.compiles)
    add("compile_seconds_total", "counter", "Time spent compiling.", totals.compile_ms / 1e3)
    add("saved_seconds_total", "counter", "Compile time that hits on disk and in packs saved.", totals.saved_ms / 1e3)
    add("publish_failures_total", "counter", "Kernels compiled that could not be stored.", totals.publish_failures)
    add("corruptions_total", "counter", "Damaged entries found and quarantined.", totals.corruptions)
    add("tier_failures_total", "counter", "Failures of a tier, which was skipped.", totals.failures)
    add("evictions_total", "counter", "Entries evicted.", totals.evictions)
    add("lock_wait_seconds_total", "counter", "Long waits for the lock of a key.", totals.lock_wait_ms / 1e3)
    add("entries", "gauge", "Kernels in the store.", stats.entries)
    add("max_entries", "gauge", "The limit of entries.", stats.max_entries)
    add("stored_bytes", "gauge", "Bytes of the store on disk, without its journal.", stats.stored_bytes)
    add("max_bytes", "gauge", "The limit of stored bytes.", stats.max_bytes)
    return "\n".join(lines) + "\n"


def write(cache: Cache, path: Path) -> None:
    """Writes a file in one step, so that a reader never gets a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(metrics(cache.stats()), encoding="utf-8")
    temporary.replace(path)


def server(cache: Cache, port: int) -> HTTPServer:
    """A server of ``/metrics`` for this machine alone; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        """Answers with the statistics of now."""

        def do_GET(self) -> None:
            """One scrape."""
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = metrics(cache.stats()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return HTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Writes a file, or serves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", type=Path, help="default: GEMM_CACHE_DIR, else the user cache directory")
    parser.add_argument("--file", type=Path, help="write this file and end")
    parser.add_argument("--port", type=int, default=9469, help="serve on 127.0.0.1 (default: %(default)s)")
    asked = parser.parse_args()

    try:
        with open_cache(asked.store, create=False) as cache:
            if asked.file:
                write(cache, asked.file)
            else:
                serving = server(cache, asked.port)
                print(f"http://127.0.0.1:{serving.server_port}/metrics", flush=True)
                serving.serve_forever()
    except GemmCacheError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
