"""Runs of the engine beside runs of the simulator: fitting, parity, validation, export."""
