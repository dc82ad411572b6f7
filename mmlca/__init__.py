"""Mixture-Markov latent class analysis of treatment sequences.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

import logging

import lazy_loader

from font.exchange.registry import register_family, register_tables

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]

register_family("mmlca markov counts", "mmlca.federation.markov_kind:MARKOV")
register_family("mmlca markov counts by context", "mmlca.federation.markov_kind:MARKOV_BY_CONTEXT")
register_family("mmlca time course", "mmlca.federation.course_kind:TIME_COURSE")
register_tables("mmlca study", "mmlca.study.results.registry:TABLES")

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library prints nothing
