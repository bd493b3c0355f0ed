from support.fixtures.notifications import mailbox, webhook, world

__all__ = ["mailbox", "webhook", "world"]
