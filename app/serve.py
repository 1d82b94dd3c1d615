"""Runs Streamlit, without the one request that it would send to the world.

Asked for data by a page of another origin, Streamlit 1.67 looks up this machine's external address at a public service,
to decide whether that origin may be itself. Ours is never served there, so any web page that tries could make a machine
on a closed network call out. The answer is always: there is none.
"""

from __future__ import annotations

from streamlit import net_util
from streamlit.web import cli


def no_address() -> None:
    """What the lookup answers here."""


net_util.get_external_ip = no_address
net_util.get_internal_ip = no_address  # asks nobody, but an address that is not served is no origin of ours either

if __name__ == "__main__":
    cli.main()
