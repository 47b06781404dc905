"""The commands of `python -m simulator`, by what they work on."""
