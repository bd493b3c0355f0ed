"""A small Compute Engine of our own, on a real socket: disks, snapshots, managed instance groups and operations in the
REST API's JSON, as Google's own client sends and reads it, and everything that goes wrong there.

It is written from the API's public reference and the client's own definitions. Nobody here has seen the real one.
"""

from support.clouds.gcp_stub.faults import Refuse, Request
from support.clouds.gcp_stub.listing import Gap
from support.clouds.gcp_stub.project import Project
from support.clouds.gcp_stub.server import GcpStub
from support.clouds.stub_faults import Cut, Delay, Fault, Nonsense, Reset

__all__ = ["Cut", "Delay", "Fault", "Gap", "GcpStub", "Nonsense", "Project", "Refuse", "Request", "Reset"]
