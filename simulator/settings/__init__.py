"""What a user writes and what is read from files: scenarios, calibrations, traces, tables."""
