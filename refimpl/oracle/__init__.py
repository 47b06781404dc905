"""Autoregressive decoding, written apart from the batched path: what every output is compared with."""
