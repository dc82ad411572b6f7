"""What benchmarks share."""

from comparisons import compare  # noqa: F401 - a fixture
