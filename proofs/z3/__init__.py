"""Obligations about `refimpl/core/kernels.py`, evaluated on symbolic terms and discharged by Z3 and cvc5."""
