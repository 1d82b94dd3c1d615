"""The dashboard: queries and pages on stores of up to a million kernels."""
