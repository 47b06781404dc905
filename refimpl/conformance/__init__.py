"""Property tests of batch speculative decoding for any engine that answers a simple protocol."""
