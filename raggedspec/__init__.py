"""The command `raggedspec`: the engine's commands, and the simulator's under `sim`."""
