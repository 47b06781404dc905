"""Which extra of the package brings a library that an installation of the engine alone lacks."""

EXTRA_OF = {
    "pandas": "simulator",
    "pyarrow": "simulator",
    "simpy": "simulator",
    "yaml": "simulator",
    "matplotlib": "plots",
    "hypothesis": "conformance",
    "pytest": "conformance",
    "httpx2": "conformance",
    "dask": "sweep",
    "distributed": "sweep",
    "SALib": "sweep",
    "llguidance": "grammar",
}


def missing_extra(error: ImportError) -> str | None:
    """One line that says what to install; None where the error is about something else."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        return None
    return f"{library} is not installed: pip install 'raggedspec[{EXTRA_OF[library]}]'"
