"""Reference engine for batch speculative decoding."""
