"""Files that the engine writes and the simulator reads: the versions of their formats, and their columns."""

TRACE_SCHEMA = "raggedspec.trace/1"
CALIBRATION_SCHEMA = "raggedspec.calibration/3"
VALIDATION_SCHEMA = "raggedspec.validation/3"
POINT_COLUMNS = (  # of a calibration's points.csv
    "component", "layout", "batch_size", "tokens_per_row", "width_tokens", "repeats",
    "mean_s", "median_s", "p10_s", "p90_s",
)  # fmt: skip
