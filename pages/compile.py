"""Compile: one shape, in a process of its own, stage by stage; and its time, where there is a GPU."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from app import context, widgets
from app.presenters.compile import AS_INPUTS, asked_of, stage_lines
from app.presenters.shared import Tile
from cache_engine.device.probe import gpu, local_arch
from cache_engine.errors import GemmCacheError
from cache_engine.jobs import DONE, RUNNING, Job
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import INPUT_DTYPES, MAX_BATCH, MAX_DIMENSION, OUTPUT_DTYPES, DType, GemmProblem, Layout
from cache_engine.units import human_bytes, human_ms

POLL_S = 0.3
LAYOUTS = {
    Layout.NT: "nt — A m×k, B n×k (linear layer)",
    Layout.NN: "nn — A m×k, B k×n",
    Layout.TN: "tn — A k×m, B k×n",
    Layout.TT: "tt — A k×m, B n×k",
}

st.title("Compile")
cache, jobs, device = context.cache(), context.jobs(), gpu()
asked_in = st.query_params.get("job")
job: Job | None = None
trouble = ""
if asked_in is not None:
    try:
        job = jobs.load(asked_in)
    except GemmCacheError as error:
        trouble = str(error)
if job is not None and "m" not in st.session_state:
    # A link, or a reload: the form shows what the job was asked.
    st.session_state.update(asked_of(job))

st.caption("C (m × n) = A (m × k) · B (k × n). A kernel that is in the store is found; any other is compiled and kept.")

with st.form("shape"):
    sizes = st.columns(4)
    kept: Any = {"persist_state": "session"}
    m = sizes[0].number_input("m", 1, MAX_DIMENSION, 4096, key="m", **kept)
    n = sizes[1].number_input("n", 1, MAX_DIMENSION, 7168, key="n", **kept)
    k = sizes[2].number_input("k", 1, MAX_DIMENSION, 2048, key="k", **kept)
    batch = sizes[3].number_input("Batch", 1, MAX_BATCH, 1, key="batch", **kept)
    kinds = st.columns(4)
    dtype = kinds[0].selectbox("Dtype of A and B", list(INPUT_DTYPES), index=1, key="dtype", **kept)
    out_dtype = kinds[1].selectbox("Dtype of C", [AS_INPUTS, *OUTPUT_DTYPES], key="out_dtype", **kept)
    layout = kinds[2].selectbox("Layout", list(LAYOUTS), format_func=lambda value: LAYOUTS[value], key="layout", **kept)
    default_arch = local_arch() or cache.settings.default_arch
    targets = list(ARCHITECTURES)
    arch = kinds[3].selectbox("Target", targets, index=targets.index(default_arch), key="arch", **kept)
    submitted = st.form_submit_button("Get kernel", type="primary", icon=":material/play_arrow:")

here = isinstance(device, DeviceFingerprint) and device.arch.rstrip("af") == arch.rstrip("af")
if isinstance(device, DeviceFingerprint):
    st.caption(f"Local GPU: {device.name} ({device.arch}).")
    if not here:
        st.caption("Kernels for other targets are compiled, but only those for the local GPU can be timed.")
else:
    st.info(
        f"Timing needs an NVIDIA GPU, and {device}. Compiling needs none: any target can be compiled for here.",
        icon=":material/timer_off:",
    )

if submitted:
    out = DType(out_dtype) if out_dtype in list(DType) else None
    try:
        problem = GemmProblem(
            m, n, k, batch=batch, dtype=DType(str(dtype)), out_dtype=out, layout=Layout(layout), arch=arch
        )
        cache.select(problem)
        command = ["time" if here else "compile", str(m), str(n), str(k), "--batch", str(batch)]
        command += ["--dtype", problem.dtype, "--out-dtype", problem.output, "--layout", problem.layout]
        command += ["--arch", str(arch)]
        st.query_params["job"] = jobs.start(command)
        st.rerun()
    except (GemmCacheError, OSError) as error:
        st.query_params.clear()
        job, trouble = None, ""
        widgets.problem("This cannot be compiled.", str(error))


def show_result(job: Job) -> None:
    """What a finished job has found or made."""
    document = json.loads(job.result)
    kernel = document.get("kernel", document)
    tier, size = kernel["tier"], human_bytes(kernel["size_bytes"])
    if tier == "compiled":
        verdict = f"Miss: compiled in {human_ms(kernel['compile_ms'])}."
    else:
        verdict = (
            f"Hit ({tier}): found in {human_ms(kernel['load_ms'])}; compiling it took {human_ms(kernel['compile_ms'])}."
        )
    st.success(verdict, icon=":material/check_circle:" if tier == "compiled" else ":material/bolt:")
    st.code(f"{kernel['name']}\n{kernel['key']}", language=None)
    if kernel["unpublished"]:
        widgets.problem("The kernel is not kept.", kernel["unpublished"])
    widgets.tiles(
        [
            Tile("Registers", str(kernel["registers"]), "Per thread."),
            Tile("Spilled", human_bytes(kernel["spill_bytes"]), "Register contents moved to local memory."),
            Tile("Shared memory", human_bytes(kernel["shared_bytes"]), "Per block."),
            Tile("Code", size, "Size of the compiled code."),
        ]
    )
    if "median_us" in document:
        st.subheader("Time")
        st.text(f"{document['device']}: {document['repeats']} launches, each with a cold L2 cache")
        check = "checked against CuPy" if document["verified"] else "NOT VERIFIED: results differ from CuPy's"
        widgets.tiles(
            [
                Tile("Median", human_ms(document["median_us"] / 1e3), check),
                Tile("10th percentile", human_ms(document["p10_us"] / 1e3), check),
                Tile("90th percentile", human_ms(document["p90_us"] / 1e3), check),
                Tile("Speed", f"{document['tflops']:.1f} TFLOP/s", check),
            ]
        )
        if not document["verified"]:
            st.error(f"The result is wrong: its largest relative error is {document['max_rel_error']:.2g}.")
    widgets.kernel_link("Look into this kernel", kernel["key"])


@st.fragment(run_every=POLL_S)
def follow(job_id: str) -> None:
    """Shows a running job, and reruns the page when it has ended."""
    job = jobs.load(job_id)
    if job.state != RUNNING:
        st.rerun()
    st.status("Working…", expanded=True).text(stage_lines(job))


if trouble:
    widgets.problem("This job cannot be shown.", trouble)
if job is not None and job.state == RUNNING:
    follow(job.id)
elif job is not None:
    if job.state == DONE:
        try:
            show_result(job)
        except (ValueError, LookupError, TypeError, AttributeError):
            widgets.problem("The result of this job cannot be read.", job.result[:2000])
    else:
        widgets.problem("The kernel could not be made.", job.error or "The process ended without saying why.")
    st.status("Stages", state="complete" if job.state == DONE else "error").text(stage_lines(job))
