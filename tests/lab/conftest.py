"""Tests of the laboratory see nothing of what the user's shell selects, as unit tests do."""

from tests.unit.conftest import _without_the_users_selection as _without_the_users_selection
from tests.unit.conftest import own_places as own_places
