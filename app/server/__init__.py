"""In front of Streamlit's server: who is answered, with which headers, and how its files are sent."""
