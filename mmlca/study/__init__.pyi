# The public names, listed here once; `lazy_loader` loads each on first use.
from .config import Study as Study
from .config import read_study as read_study
from .config import write_study_file as write_study_file
from .read import read_site as read_site
from .run import run_study as run_study
from .sensitivity import run_sensitivity as run_sensitivity
