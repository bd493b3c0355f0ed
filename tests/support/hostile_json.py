"""What somebody may write where a report is expected."""

HOSTILE = (
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b"[" * 500 + b"]" * 500,
    b'{"exit_code": 0, "last": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"words": ' + b"[" * 300 + b"]" * 300 + b', "final": true}',
    b'{"state": "failed", "reason": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"exit_code": NaN, "last": ""}',
    b'{"exit_code": ' + b"9" * 5000 + b', "last": ""}',
    b'"' + b"\\" * 30_001,
    b"[" * 17 + b'"' + b'\\"' * 30_000,
    b'"\\ud800"',
    b"\xff\xfe[",
    b'"' + b"x" * 100_000 + b'"',
    b"",
)
