"""Commands of `raggedspec`: options in, tables or JSON out, exit code 2 for bad input."""
