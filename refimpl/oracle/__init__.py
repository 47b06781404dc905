"""Ordinary decoding, written separately from the batched path. Every output is compared with it."""
