"""Layers in front of Streamlit's server: which requests are answered, with which headers, and how files are sent."""
