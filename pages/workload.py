"""The page Workload: what programs ask for, what a model needs and which of its kernels are missing, and runs."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.addresses import ASKED_FOR, OF_A_MODEL, RUNS, WORKLOADS
from app.views import coverage, demand, runs

st.title("Workload")
context.cache()
part = widgets.choose_one("Part", WORKLOADS, ASKED_FOR, key="part", hidden=True)
{ASKED_FOR: demand, OF_A_MODEL: coverage, RUNS: runs}[part].draw()
