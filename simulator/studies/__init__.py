"""Many runs: sweeps, capacity, attribution."""
