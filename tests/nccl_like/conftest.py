"""Jobs of one rank whose backend is like NCCL."""

from __future__ import annotations

import pytest
from tests.nccl_like.building import Like, NotBuiltError, build


@pytest.fixture(scope="session")
def like(request: pytest.FixtureRequest) -> Like:
    """Return the libraries that stand in for NCCL and CUDA."""
    cache = request.config.cache
    if cache is None:
        pytest.skip("pytest runs without its cache")
    try:
        return build(cache.mkdir("nccl_like"))
    except NotBuiltError as error:
        pytest.skip(f"the backend that is like NCCL is not built: {error}")
