"""Workload: what programs ask for, and what a model needs, with the kernels that are missing."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.addresses import ASKED_FOR, WORKLOADS
from app.views import coverage, demand

st.title("Workload")
context.cache()
part = widgets.choose_one("Part", WORKLOADS, ASKED_FOR, key="part", hidden=True)
(demand if part == ASKED_FOR else coverage).draw()
