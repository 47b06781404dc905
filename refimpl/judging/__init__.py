"""Are two decoders equal, and where they are not: a tie of numbers or a bug?"""
