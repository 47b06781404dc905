"""Pictures of rounds, for notebooks and talks. They need matplotlib: ``pip install 'raggedspec[plots]'``.

| module    | draws                                                                         |
|-----------|-------------------------------------------------------------------------------|
| `watch`   | nothing: runs a batch and keeps what each verify pass was fed                  |
| `rounds`  | the ragged batch of a round, what each query sees, positions, rounds in time   |
| `regrets` | how far the tokens of an output are from the target's own choice               |
| `style`   | axes, colours, captions; the plots of the simulator share them                 |
"""
