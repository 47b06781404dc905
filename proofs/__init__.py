"""Machine-checked proofs of the synchronization invariants; see README.md."""
