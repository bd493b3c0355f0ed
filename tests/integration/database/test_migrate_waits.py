"""Whoever migrates may be there before the database is."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.bootstrap.service_runtime import wait_for_database
from gpudev.domain.errors import Unavailable
from gpudev.settings import DatabaseSettings


async def test_a_database_that_comes_later_is_waited_for(database: DatabaseSettings, tmp_path: Path) -> None:
    later = tmp_path / "later"
    waiting = asyncio.create_task(wait_for_database(replace(database, host=str(later)), 60))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    later.symlink_to(database.host)
    await asyncio.wait_for(waiting, 30)


async def test_one_that_does_not_come_is_told_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the database does not answer"):
        await wait_for_database(DatabaseSettings(host=str(tmp_path)), 0.05)
