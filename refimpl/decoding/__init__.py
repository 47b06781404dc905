"""One round and the loop around it: passes, acceptance, commit, checks."""
