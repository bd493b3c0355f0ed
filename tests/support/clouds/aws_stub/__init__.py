"""A small AWS of our own, on a real socket: EC2's volumes and snapshots and Auto Scaling's groups, as botocore sees
them, and everything that goes wrong there (pages, throttling, cut lines, things not seen yet).

It is written from the two services' public API references. What nobody here has seen of the real ones: how long
what was made cannot be seen, and what a client token gives whose volume is gone.
"""

from support.clouds.aws_stub.account import Account, Attachment, Snapshot, Volume
from support.clouds.aws_stub.faults import Refuse
from support.clouds.aws_stub.server import AwsStub
from support.clouds.stub_faults import Cut, Delay, Fault, Nonsense, Reset

__all__ = [
    "Account",
    "Attachment",
    "AwsStub",
    "Cut",
    "Delay",
    "Fault",
    "Nonsense",
    "Refuse",
    "Reset",
    "Snapshot",
    "Volume",
]
