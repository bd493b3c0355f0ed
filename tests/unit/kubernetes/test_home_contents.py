"""What a dev server says is in its home is looked at before it is believed: whoever has the pod may say anything."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpudev.adapters.kubernetes.observation.home_contents import MAX_ENTRIES, parse_contents
from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind
from gpudev.domain.errors import ClusterError

ENTRY = ["notes.txt", "file", 5, "2026-01-02T03:04:05+00:00"]
GOOD: dict[str, Any] = {"files": 1, "folders": 0, "size_bytes": 5, "entries": [ENTRY], "counted": True}


def test_a_listing_is_read_and_can_be_kept_as_any_other() -> None:
    found = parse_contents(json.dumps(GOOD).encode())
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert found == Contents(1, 0, 5, (DiskEntry("notes.txt", DiskEntryKind.FILE, 5, moment),))
    assert found.is_complete
    assert Contents.from_json(found.to_json()) == found


def test_one_that_ran_out_of_time_never_counts_as_complete() -> None:
    found = parse_contents(json.dumps(GOOD | {"counted": False}).encode())
    assert not found.is_complete
    assert not Contents.from_json(found.to_json()).is_counted


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"no json",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        *(json.dumps({key: value for key, value in GOOD.items() if key != left}).encode() for left in GOOD),
        *(
            json.dumps(GOOD | change).encode()
            for change in (
                {"files": -1},
                {"files": True},
                {"files": 2**63},
                {"files": 1.5},
                {"size_bytes": "5"},
                {"counted": 1},
                {"entries": 7},
                {"entries": [[*ENTRY, "more"]]},
                {"entries": [["a", "file", 5]]},
                {"entries": [[5, "file", 5, ENTRY[3]]]},
                {"entries": [["a\0b", "file", 5, ENTRY[3]]]},
                {"entries": [["a", "virus", 5, ENTRY[3]]]},
                {"entries": [["a", "file", -5, ENTRY[3]]]},
                {"entries": [["a", "file", 5, "yesterday"]]},
                {"entries": [["a", "file", 5, None]]},
                {"entries": [["a", "file", 5, "0001-01-01T00:00:00+23:59"]]},
                {"entries": [ENTRY] * (MAX_ENTRIES + 1)},
            )
        ),
    ],
)
def test_what_is_no_listing_is_refused(said: bytes) -> None:
    with pytest.raises(ClusterError, match="invalid listing"):
        parse_contents(said)
