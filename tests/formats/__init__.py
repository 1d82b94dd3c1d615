"""Formats that other programs and older versions rely on, recorded once and compared with what is written today."""
