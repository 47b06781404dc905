"""Measures what the engine's stages cost, and runs held-out studies in between, for the simulator to be judged by.

The costs are taken from rounds of the engine itself, so that caches, allocations and copies are those of real runs. A
*visit* runs a few rounds of the engine at one place of the grid (variant, batch size, prompt length) with every k in
turn. A *pass* visits the whole grid in random order. Runs are placed between the visits, because machines drift:

| run        | prompts                      | what it is for                                                     |
|------------|------------------------------|--------------------------------------------------------------------|
| acceptance | its own                      | acceptance is fitted to it                                          |
| probes     | the same in every pass       | how much the seconds of the same run differ: ``run_cv``      |
| held out   | of other documents           | no cost, no noise and no acceptance is taken from it                 |

A fixed reference pass is timed along with all of them: points are given at the reference's mean speed, and each run
says at which speed it ran. Column names and fields are those of `simulator/data/README.md`.
"""

from refimpl.calibrate.run import calibrate

__all__ = ["calibrate"]
