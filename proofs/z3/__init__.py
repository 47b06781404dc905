"""Obligations about `refimpl/kernels.py`, evaluated on symbolic terms and discharged by Z3 and cvc5."""
