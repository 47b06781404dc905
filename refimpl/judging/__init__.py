"""Do two decoders produce the same output? If not: is it a numerical tie or a bug?"""
