# The public names, listed here once; `lazy_loader` loads each on first use.
from .run import run_study as run_study
from .sensitivity import run_sensitivity as run_sensitivity
from .settings import Study as Study
from .site_data import read_site as read_site
from .study_file import read_study as read_study
from .study_file import settings_table as settings_table
from .study_file import write_study_file as write_study_file
