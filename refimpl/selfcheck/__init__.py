"""Property tests of our own engine: cases with scripted acceptance, and what must hold for each."""
