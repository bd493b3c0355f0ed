"""A token service of our own, on a real socket, that checks signatures: GetCallerIdentity as STS answers it, and
everything else that may answer in its place (slow, huge, malformed, another's page, sent elsewhere).

Written from the public descriptions of Signature Version 4 and of the STS API, without AWS's own libraries.
"""

from support.access.sts_stub.identities import ACCOUNT, ROLE, Identity, single_sign_on
from support.access.sts_stub.server import Drip, Hang, Raw, StsStub
from support.access.sts_stub.signature import Message, authorization, sign

__all__ = [
    "ACCOUNT",
    "ROLE",
    "Drip",
    "Hang",
    "Identity",
    "Message",
    "Raw",
    "StsStub",
    "authorization",
    "sign",
    "single_sign_on",
]
