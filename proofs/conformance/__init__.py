"""The real classes against the proved relations, by exhaustive search and by exact enumeration."""
