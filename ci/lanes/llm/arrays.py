"""Names for arrays, as numpy has them."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Sample: TypeAlias = dict[str, Array]
"""The inputs or the outputs of one call, by name."""
HIDDEN = "hidden"
"""What one part of a model hands to the next is named `hidden_` and the number of the layer."""
