"""Property tests of batch speculative decoding: for this engine, and for any other that answers a simple protocol."""
