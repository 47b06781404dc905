"""The model itself: requests arrive, schedulers choose, rounds take time, metrics are taken."""
