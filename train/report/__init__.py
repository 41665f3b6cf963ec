"""A run's report.html: what came out, and the proof of it, on a page that needs nothing else."""

import logging

# It tells of its cache of fonts, each time where it cannot write one.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
