"""Farm: what the workers of a compile farm do, the runs that they work for, and what failed."""

from __future__ import annotations

import streamlit as st

from app import context
from app.views import farm

st.title("Farm")
settings = context.cache().settings
if settings.broker is None:
    farm.what_a_farm_is()
else:
    farm.follow(settings.broker, settings.remote)
