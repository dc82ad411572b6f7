"""A whole study: from a study file to tables, figures and a report.

`read_study` reads and checks the file, `run_study` runs the analysis and writes the results and
the report, and `run_sensitivity` repeats the analysis under other choices.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
