"""The process in which Triton compiles. ``triton.py`` starts it and is the only one to talk to it.

Its text, which is part of every key of Triton, is run with ``python -I -S -c``, so that nothing of this package, of its
caller's settings and of other packages is loaded. Arguments: the folder that holds the ``triton`` package, and a folder
of its own, which it deletes when it ends.

It speaks JSON, a document a line. First it says where it found Triton: ``{"package"}``. To each question, ``{"source",
"capability"}``, it answers with ``{"cubin", "ptx", "log", "shared_bytes"}``, CUBIN in base64, or with ``{"error",
"log"}``. It ends with its input.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import linecache
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

# Never the name of a file: paths could get into what is compiled.
_SOURCE = "<gemm-cache>"
_ENTRY = re.compile(r"\.entry\s+\w+\s*\(([^)]*)\)")


def main(packages: str, folder: str) -> None:
    """Answers requests until there are no more."""
    # Whatever Triton, LLVM or ptxas print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, packages)
    with contextlib.suppress(BrokenPipeError):  # whoever asked has gone
        _send(answers, _hello())
        for line in sys.stdin:
            _send(answers, _answer(json.loads(line)))
            # Triton keeps what it has compiled; the cache is somebody else's business.
            shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _send(answers: io.TextIOBase, document: dict[str, object]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def _hello() -> dict[str, object]:
    try:
        import triton
        import triton.compiler
        from triton.runtime import cache
    except Exception as error:  # whatever keeps it from being imported
        return {"error": _words(error)}
    # Goes into the keys of Triton's own cache, which is empty here. As it is it hashes 500 MB first.
    cache.triton_key = lambda: ""
    return {"package": str(Path(triton.__file__).parent)}


def _answer(request: dict[str, Any]) -> dict[str, object]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            made = _compile(request["source"], request["capability"])
    except Exception as error:  # Triton raises errors of many kinds
        return {"error": _words(error), "log": printed.getvalue()}
    return {**made, "log": printed.getvalue()}


def _compile(source: str, capability: int) -> dict[str, object]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # Triton reads the text of a function where Python would look for it.
    linecache.cache[_SOURCE] = (len(source), None, source.splitlines(keepends=True), _SOURCE)
    module: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(source, _SOURCE, "exec"), module)  # noqa: S102 (a template of ours)
    asked = module["specialise"](module["CONSTANTS"])
    done = triton.compile(
        ASTSource(module["kernel"], asked["signature"], asked["constants"], asked["hints"]),
        target=GPUTarget("cuda", capability, 32),
        options=asked["options"],
    )
    _check_launch(done, asked)
    return {
        "cubin": base64.b64encode(done.asm["cubin"]).decode(),
        "ptx": done.asm["ptx"],
        "shared_bytes": done.metadata.shared,
    }


def _check_launch(done: Any, asked: dict[str, Any]) -> None:
    """Refuses a kernel that could not be launched as the source says; versions of Triton may differ."""
    found = _ENTRY.search(done.asm["ptx"])
    parameters = found[1].count(".param") if found else 0
    scratch_bytes = done.metadata.global_scratch_size + done.metadata.profile_scratch_size
    for what, had, wanted in (
        ("parameters", parameters, len(asked["parameters"])),
        ("warps", done.metadata.num_warps, asked["options"]["num_warps"]),
        ("blocks in a cluster", done.metadata.num_ctas, 1),
        ("bytes of scratch memory", scratch_bytes, 0),
    ):
        if had != wanted:
            raise ValueError(f"this version of Triton made a kernel of {had} {what}; it must be {wanted}")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
