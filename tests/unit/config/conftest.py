"""Shared by the tests of configs."""

from collections.abc import Callable

import pytest

from cl2r.config.layers import override, resolve
from cl2r.errors import InputError


@pytest.fixture
def message() -> Callable[..., str]:
    """Return a function that gives the one line by which settings over an empty preset are refused."""

    def refused(*settings: str) -> str:
        with pytest.raises(InputError) as caught:
            resolve([{}, *map(override, settings)])
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused
