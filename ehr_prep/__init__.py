"""From medication records to treatment sequences, with every dropped record counted.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

import logging

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library prints nothing
