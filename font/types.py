"""Types of the arguments that font's functions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.integer[Any]]
Models: TypeAlias = Mapping[Any, Any]  # {name: model with class_parameters_, or the array itself}
LabelTables: TypeAlias = "Mapping[Any, pd.DataFrame]"  # {site: patients × models}
Clustering: TypeAlias = "ArrayLike | pd.Series"  # the group of each patient
Clusterings: TypeAlias = Mapping[Any, ArrayLike]  # {site: the group of each patient}
