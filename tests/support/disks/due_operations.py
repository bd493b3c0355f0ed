"""Carries operations on without a processor, one after the other."""

from datetime import datetime

from gpudev.workflows.disks.operations import DiskOperations


async def run_due(operations: DiskOperations) -> datetime | None:
    """Everything that may go on now; when to come again. Two operations of one disk follow each other: when the first
    ends the next one may go on, so it is repeated until nothing moves."""
    while True:
        moved = False
        for operation_id in await operations.store.due(operations.clock.now()):
            moved |= await operations.advance(operation_id)
        if not moved:
            return await operations.store.next_due()
