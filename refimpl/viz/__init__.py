"""Pictures of rounds, and reports that show them. Pictures need matplotlib: ``pip install 'raggedspec[plots]'``.

| module    | draws                                                                         |
|-----------|-------------------------------------------------------------------------------|
| `batch`   | nothing: says what each token of a batch is, around the first wrong one       |
| `page`    | a report as a page of its own, with such batches, and as JUnit                |
| `watch`   | nothing: runs a batch and keeps what each verify pass was fed                  |
| `rounds`  | the ragged batch of a round, what each query sees, positions, rounds in time   |
| `regrets` | how far the tokens of an output are from the target's own choice               |
| `style`   | axes, colours, captions; the plots of the simulator share them                 |
"""
