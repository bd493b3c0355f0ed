"""Waiting for a reservation, tried without a network or a clock that runs by itself."""

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from gpudev.sdk.errors import NotInTime, Unauthenticated, Unavailable, Unreachable
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.event_stream import ConnectionLost, JobHistory, JobUpdate, JobWatch, wait_until_ready
from gpudev.sdk.http.routines import CloseStream, Notify, OpenStream, Pause, ReadLine, Send
from gpudev.sdk.http.transport import HttpResponse, LineStream
from gpudev.wire import codec
from gpudev.wire.reservations import JobEvent, JobView
from support.client.fake_api import make_job
from support.client.sdk_driver import drive

JOB = make_job(status="queued", queue_position=2)
CUT = Unreachable("cut", sent=True)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stream() -> LineStream:
    """Nothing reads it: the lines are the test's."""
    return cast("LineStream", object.__new__(LineStream))


def following(time: Time, **options: Any) -> JobWatch:
    return JobWatch(ApiClient("http://api", None), JOB.reservation_id, **{"patience": 300.0, "now": time, **options})


def told(job: JobView) -> list[bytes]:
    return [b"event: job\n", b"data: " + json.dumps(codec.encode_model(job)).encode() + b"\n", b"\n"]


def plain(job: JobView) -> HttpResponse:
    return HttpResponse(200, json.dumps(codec.encode_model(job)).encode(), "application/json")


def test_news_come_from_one_stream_for_as_long_as_it_lives() -> None:
    followed = following(Time())
    news, effects = drive(followed.next(), [stream(), b": hello\n", b"\n", *told(JOB)])
    assert isinstance(news, JobUpdate)
    assert isinstance(effects[0], OpenStream)
    news, effects = drive(followed.next(), told(replace(JOB, queue_position=1)))
    assert news.reply.value.queue_position == 1
    assert {type(effect) for effect in effects} == {ReadLine}


def test_a_stream_that_breaks_is_closed_the_job_looked_at_and_the_stream_taken_up_where_it_broke() -> None:
    followed = following(Time())
    drive(followed.next(), [stream(), b"event: event\n", b"id: 7\n", b"data: {}\n", b"\n", *told(JOB)])
    lost, effects = drive(followed.next(), [CUT, None])
    assert lost == ConnectionLost("cut")
    assert isinstance(effects[-1], CloseStream)
    seen, effects = drive(followed.next(), [None, plain(JOB)])
    assert isinstance(seen, JobUpdate)
    assert [type(effect) for effect in effects] == [Pause, Send]
    _, effects = drive(followed.next(), [stream(), *told(JOB)])
    assert isinstance(effects[0], OpenStream)
    assert effects[0].request.headers["Last-Event-ID"] == "7"


def test_pauses_grow_while_nothing_is_heard_and_patience_ends() -> None:
    time = Time()
    followed = following(time, patience=100.0)
    pauses = []
    for _ in range(8):
        drive(followed.next(), [CUT])
        outcome, effects = drive(followed.next(), [None, *[CUT, None] * 3, CUT])
        assert outcome == ConnectionLost("cut")
        pauses.append(effects[0].seconds)  # type: ignore[union-attr]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    time.now = 101.0
    with pytest.raises(Unreachable, match="cut"):
        drive(followed.next(), [CUT])


def test_a_refusal_ends_the_following_at_once() -> None:
    refusal = HttpResponse(401, b'{"detail": "no", "code": "unauthenticated"}', "application/problem+json")
    with pytest.raises(Unauthenticated):
        drive(following(Time()).next(), [refusal])


def test_nobody_waits_beyond_the_time_they_gave() -> None:
    time = Time()
    followed = following(time, deadline=10.0)
    _, effects = drive(followed.next(), [stream(), *told(JOB)])
    reads = [effect for effect in effects if isinstance(effect, ReadLine)]
    assert {read.within for read in reads} == {10.0}
    time.now = 11.0
    with pytest.raises(NotInTime):
        drive(followed.next(), [])


def test_nobody_is_told_of_a_state_before_the_one_they_know() -> None:
    preparing = replace(JOB, status="preparing", version=JOB.version + 1)
    followed = following(Time(), known_version=preparing.version)
    news, _ = drive(followed.next(), [stream(), *told(JOB), *told(preparing)])
    assert news.reply.value.status == "preparing"
    news, _ = drive(followed.next(), [*told(JOB), *told(preparing)])
    assert news.reply.value.status == "preparing"


def test_whoever_waits_is_told_of_every_change_and_the_stream_is_closed() -> None:
    seen: list[JobView] = []
    ready = replace(JOB, status="active")
    waiting = wait_until_ready(following(Time()), JOB, seen.append)
    result, effects = drive(waiting, [None, stream(), *told(ready), None, None])
    assert result.status == "active"
    assert [effect.value.status for effect in effects if isinstance(effect, Notify)] == ["queued", "active"]
    assert isinstance(effects[-1], CloseStream)


def test_an_interrupted_wait_closes_its_stream() -> None:
    waiting = wait_until_ready(following(Time()), JOB, None)
    assert isinstance(next(waiting), OpenStream)
    assert isinstance(waiting.send(stream()), ReadLine)
    assert isinstance(waiting.throw(KeyboardInterrupt()), CloseStream)
    with pytest.raises(KeyboardInterrupt):
        waiting.send(None)


def line_of(number: int, version: int) -> list[bytes]:
    event = JobEvent(event_id=number, at=JOB.created_at, kind="step", status="queued", version=version, message="m")
    data = json.dumps(codec.encode_model(event)).encode()
    return [b"event: event\n", b"id: %d\n" % number, b"data: " + data + b"\n", b"\n"]


def test_a_history_is_whole_with_the_version_that_is_known() -> None:
    history = JobHistory(ApiClient("http://api", None), replace(JOB, version=2), follow=False)
    assert drive(history.next(), [stream(), *line_of(1, 1)])[0].event_id == 1
    assert drive(history.next(), line_of(2, 2))[0].event_id == 2
    assert drive(history.next(), [None])[0] is None


def test_a_history_that_is_followed_is_taken_up_again_when_it_is_cut() -> None:
    history = JobHistory(ApiClient("http://api", None), JOB, follow=True)
    drive(history.next(), [stream(), *line_of(1, 1)])
    event, effects = drive(history.next(), [CUT, None, None, stream(), *line_of(2, 2)])
    assert event.event_id == 2
    assert Pause in map(type, effects)
    opened = next(effect for effect in effects if isinstance(effect, OpenStream))
    assert opened.request.headers["Last-Event-ID"] == "1"


def test_a_history_that_is_only_read_is_not_taken_for_whole_when_it_is_cut() -> None:
    history = JobHistory(ApiClient("http://api", None), replace(JOB, version=5), follow=False)
    drive(history.next(), [stream(), *line_of(1, 1)])
    with pytest.raises(Unreachable):
        drive(history.next(), [CUT, None])


TROUBLE = HttpResponse(502, b"<html>Bad Gateway</html>", "text/html")
"""What a reverse proxy says while the API restarts."""


def test_a_followed_history_ends_with_its_reservation_and_not_with_its_stream() -> None:
    """An API that restarts ends its streams properly, and a proxy before it answers in its stead for a while."""
    history = JobHistory(ApiClient("http://api", None), JOB, follow=True)
    drive(history.next(), [stream(), *told(JOB), *line_of(1, 1)])
    event, effects = drive(history.next(), [None, None, None, TROUBLE, None, stream(), *line_of(2, 2)])
    assert event.event_id == 2
    assert [effect.seconds for effect in effects if isinstance(effect, Pause)] == [0.25, 0.5]
    ended = told(replace(JOB, status="cancelled"))
    assert drive(history.next(), [*line_of(3, 3)])[0].event_id == 3
    assert drive(history.next(), [*ended, None, None])[0] is None


def test_a_followed_history_does_not_wait_forever_for_an_api_that_stays_away() -> None:
    history = JobHistory(ApiClient("http://api", None), JOB, follow=True, patience=3.0)
    drive(history.next(), [stream(), *line_of(1, 1)])
    with pytest.raises(Unavailable, match="502"):
        drive(history.next(), [CUT, None, *[None, TROUBLE] * 4])


def test_a_history_that_makes_no_sense_is_not_asked_for_again() -> None:
    history = JobHistory(ApiClient("http://api", None), JOB, follow=True)
    with pytest.raises(Unavailable, match="invalid data"):
        drive(history.next(), [stream(), b"event: event\n", b"data: {}\n", b"\n", None])
