"""The benchmark of appends."""

import pytest

from adapters.postgres.bench import append


async def test_the_benchmark_measures_everything_it_compares(embedded_url: str) -> None:
    """Every measure has a value of its own, and each ratio is that of its two values."""
    found = await append(embedded_url, rounds=1, seconds=0.2)
    values = found["events_per_second"]
    assert set(values) == {"limit", "ours_one_stream", "ours_four_streams", "library_save"}
    assert all(value > 0 for value in values.values())
    ratio = values["ours_one_stream"] / values["limit"]
    assert found["ratios"]["one_stream_of_limit"] == pytest.approx(ratio, rel=0.02)
