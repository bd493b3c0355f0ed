"""A cloud's stub as the world of the cloud contracts: the same misbehaviour, whichever cloud it plays."""

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.cloud_worlds import FaultyWorld, Listing
from support.clouds.stub_faults import Cut, Fault, Nonsense, Reset, StubRequest


class StubCloudWorld(FaultyWorld):
    stub: Any
    """A `FaultyStub` that listens."""
    permissions: ClassVar[Mapping[Listing, str]]
    """What reading a listing needs."""
    server_error: ClassVar[object]
    """The stub's effect."""

    def break_page(self, listing: Listing, page: int) -> None:
        self._on_page(self.server_error, listing, page)

    def cut_page(self, listing: Listing, page: int) -> None:
        self._on_page(Cut(), listing, page)

    def _on_page(self, effect: object, listing: Listing, page: int) -> None:
        def is_meant(request: StubRequest) -> bool:
            return request.permission == self.permissions[listing] and request.page == page

        self.stub.faults.append(Fault(effect, is_meant))

    def answer_nonsense(self) -> None:
        self.stub.faults.append(Fault(Nonsense()))

    def throttle(self, requests: int) -> None:
        self.stub.throttle(requests)

    def refuse(self, listing: Listing) -> str:
        self.stub.denied.add(self.permissions[listing])
        return self.permissions[listing]

    def be_unreachable(self) -> None:
        self.stub.stop_listening()

    def answers_lost(self) -> contextlib.AbstractContextManager[None]:
        return self._lose_changes(Reset(after_the_effect=True))

    def requests_lost(self) -> contextlib.AbstractContextManager[None]:
        return self._lose_changes(Reset(after_the_effect=False))

    def _lose_changes(self, how: Reset) -> contextlib.AbstractContextManager[None]:
        lost: contextlib.AbstractContextManager[None] = self.stub.faulty(Fault(how, lambda request: request.is_change))
        return lost
