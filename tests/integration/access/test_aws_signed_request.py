"""What is forwarded to AWS, and everything that only looks like it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpudev.adapters.aws.login import SIGNATURE_LIFETIME, AcceptedRequest, SignedRequestPolicy
from gpudev.domain.access.login import NONCE_HEADER, SERVER_HEADER, STS_BODY, get_sts_endpoint
from gpudev.domain.errors import Invalid, Unauthenticated
from gpudev.ports.access import SignedRequest
from support.access.aws_signatures import NONCE, NOW, SERVER, STS, Draft, but
from support.access.sts_stub import Identity

WEST = get_sts_endpoint("us-west-2")
SHAPE = SignedRequestPolicy([STS, WEST], [SERVER, "gpu.example.com:8443"])
VALID = Draft().sign()
TOKEN, DATE, AUTHORIZATION = "X-Amz-Security-Token", "X-Amz-Date", "Authorization"


def check(request: SignedRequest) -> AcceptedRequest:
    return SHAPE.check(request, NOW)


def refused(request: SignedRequest, field: str | None = "headers") -> str:
    with pytest.raises(Invalid) as caught:
        check(request)
    assert caught.value.field == field
    return caught.value.message


def test_what_a_client_signs_is_accepted_and_goes_where_our_list_says() -> None:
    accepted = check(VALID)
    assert accepted.endpoint == STS
    assert accepted.nonce == NONCE
    assert dict(accepted.headers) == VALID.headers


def test_another_region_of_the_list_is_as_good() -> None:
    draft = Draft(url=WEST.url, host=WEST.host, region="us-west-2", server="gpu.example.com:8443")
    assert check(draft.sign()).endpoint == WEST


def test_headers_may_be_written_in_any_case_and_are_forwarded_in_ours() -> None:
    shouted = replace(VALID, headers={name.upper(): value for name, value in VALID.headers.items()})
    assert check(shouted) == check(VALID)


@pytest.mark.parametrize("method", ["GET", "post", "PUT", "HEAD", "POST ", "POST /x HTTP/1.1\r\nX: y", ""])
def test_another_method_is_refused(method: str) -> None:
    refused(Draft(method=method).sign(), "method")


@pytest.mark.parametrize(
    "url",
    [
        "https://sts.us-east-1.amazonaws.com/",  # a region that is not on the list
        "https://sts.amazonaws.com/",
        "https://sts.us-east-2.amazonaws.com",
        "https://sts.us-east-2.amazonaws.com/x",
        "https://sts.us-east-2.amazonaws.com//",
        "https://sts.us-east-2.amazonaws.com/.",
        "https://sts.us-east-2.amazonaws.com/?Action=GetCallerIdentity",
        "https://sts.us-east-2.amazonaws.com/?",
        "https://sts.us-east-2.amazonaws.com/#",
        "https://sts.us-east-2.amazonaws.com/;",
        "https://sts.us-east-2.amazonaws.com:443/",
        "https://sts.us-east-2.amazonaws.com:8443/",
        "https://sts.us-east-2.amazonaws.com./",
        "http://sts.us-east-2.amazonaws.com/",
        "HTTPS://sts.us-east-2.amazonaws.com/",
        "file://sts.us-east-2.amazonaws.com/",
        "//sts.us-east-2.amazonaws.com/",
        "https:sts.us-east-2.amazonaws.com/",
        "https:\\\\sts.us-east-2.amazonaws.com/",
        "https://STS.us-east-2.amazonaws.com/",
        "https://evil.example/",
        "https://evil.example/https://sts.us-east-2.amazonaws.com/",
        "https://sts.us-east-2.amazonaws.com@evil.example/",
        "https://user:password@sts.us-east-2.amazonaws.com/",
        "https://evil.example#@sts.us-east-2.amazonaws.com/",
        "https://evil.example\\@sts.us-east-2.amazonaws.com/",
        "https://sts.us-east-2.amazonaws.com.evil.example/",
        "https://sts.us-east-2.amazonaws.comevil.example/",
        "https://evil-sts.us-east-2.amazonaws.com/",
        "https://sts.us-east-2.аmazonaws.com/",  # a Cyrillic a
        "https://sts.us-east-2.xn--mazonaws-2fg.com/",
        "https://sts.us-east-2.ａmazonaws.com/",  # a full-width a, which IDNA folds
        "https://sts。us-east-2.amazonaws.com/",  # an ideographic full stop, which IDNA folds too
        "https://sts.us-east-2.amazonaws.com%2eevil.example/",
        "https://sts.us-east-2.amazonaws.com\t/",
        "https://sts.us-east-2.amazonaws.com/\n",
        " https://sts.us-east-2.amazonaws.com/",
        "https://sts-fips.us-east-2.amazonaws.com/",
        "https://iam.amazonaws.com/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://127.0.0.1/",
        "",
    ],
)
def test_another_address_is_refused_however_alike(url: str) -> None:
    refused(replace(VALID, url=url), "url")


@pytest.mark.parametrize(
    "body",
    [
        "Action=GetSessionToken&Version=2011-06-15",
        "Action=AssumeRole&Version=2011-06-15",
        f"{STS_BODY}&Action=AssumeRole",
        f"Action=AssumeRole&{STS_BODY}",
        f"{STS_BODY}&",
        f"{STS_BODY}\n",
        f" {STS_BODY}",
        f"{STS_BODY}#",
        f"{STS_BODY};Action=AssumeRole",
        STS_BODY.lower(),
        "Version=2011-06-15&Action=GetCallerIdentity",
        "Action=GetCallerIdentity",
        "Action=GetCallerIdentity&Version=2011-06-16",
        "Action=%47etCallerIdentity&Version=2011-06-15",
        '{"Action": "GetCallerIdentity"}',
        "",
    ],
)
def test_another_action_or_a_second_one_is_refused(body: str) -> None:
    refused(Draft(body=body).sign(), "body")


@pytest.mark.parametrize("name", [*VALID.headers])
def test_no_header_may_be_missing(name: str) -> None:
    refused(but(VALID, {name: None}))


@pytest.mark.parametrize(
    "name",
    [
        "Accept",  # answered in JSON, an error's text may hold what reads as another's answer
        "User-Agent",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Expect",
        "Cookie",
        "X-Forwarded-Host",
        "X-HTTP-Method-Override",
        "X-Amz-Target",
        "X-Amz-Content-Sha256",
        "X-Amz-Foo",
        "X-Original-URL",
        "Host ",
        " Host",
        "Host\r\nX-Smuggled",
        "Hоst",  # a Cyrillic o
        "",
    ],
)
def test_no_header_may_be_there_besides_signed_or_not(name: str) -> None:
    refused(but(VALID, {name: "1"}))
    refused(Draft(more={name: "1"}).sign())


@pytest.mark.parametrize("name", [*VALID.headers])
def test_no_header_may_be_there_twice_in_another_case(name: str) -> None:
    other = name.upper() if name != name.upper() else name.lower()
    refused(but(VALID, {other: VALID.headers[name]}))
    refused(but(VALID, {other: "another"}))


@pytest.mark.parametrize("name", [*VALID.headers])
@pytest.mark.parametrize("tail", ["\r\nX-Smuggled: 1", "\n", "\r", "\0", " ", "\t", "é", ", x", "\x85", "\u2028"])
def test_no_value_smuggles_anything_along(name: str, tail: str) -> None:
    refused(but(VALID, {name: VALID.headers[name] + tail}))
    refused(but(VALID, {name: tail + VALID.headers[name]}))


@pytest.mark.parametrize("name", [SERVER_HEADER, NONCE_HEADER, TOKEN, DATE, "Content-Type", "Host"])
def test_an_unsigned_header_is_refused(name: str) -> None:
    names = sorted(given.lower() for given in VALID.headers if given not in (AUTHORIZATION, name))
    message = refused(Draft(signed=names).sign())
    assert name.lower() in message


def test_the_list_of_signed_headers_may_not_name_one_twice_or_in_another_order() -> None:
    names = sorted(given.lower() for given in VALID.headers if given != AUTHORIZATION)
    for signed in ([*names, names[0]], names[::-1], [*names, "x-other"], [*names, ""]):
        refused(Draft(signed=signed).sign())


@pytest.mark.parametrize("server", ["other.example.com", "gpu.example.com.", "GPU.example.com", "example.com", "gpu"])
def test_a_request_that_was_signed_for_another_server_is_refused(server: str) -> None:
    refused(Draft(server=server).sign())


def test_a_request_that_names_no_server_is_refused() -> None:
    refused(Draft(server=None).sign())


def test_a_request_without_a_nonce_is_refused() -> None:
    refused(Draft(nonce=None).sign())


@pytest.mark.parametrize("nonce", ["", "short", "n" * 129, "with space in it here", "a/../../b/c/d/e/f/g/h", "%00" * 8])
def test_what_is_no_nonce_never_reaches_the_store(nonce: str) -> None:
    refused(Draft(nonce=nonce).sign())


@pytest.mark.parametrize("service", ["s3", "iam", "ec2", "sts2", "execute-api"])
def test_another_services_signature_is_refused(service: str) -> None:
    assert "sts" in refused(Draft(service=service).sign())


def test_a_request_that_another_service_would_take_is_refused() -> None:
    s3 = Draft(
        method="GET", url="https://bucket.s3.us-east-2.amazonaws.com/key", host="bucket.s3.amazonaws.com", body=""
    )
    refused(replace(s3, service="s3").sign(), "method")


@pytest.mark.parametrize("region", ["us-west-2", "us-east-1", "cn-north-1"])
def test_a_signature_for_another_region_than_its_address_is_refused(region: str) -> None:
    refused(Draft(region=region).sign())


def test_a_host_header_of_another_region_than_its_address_is_refused() -> None:
    refused(Draft(host=WEST.host).sign())
    refused(Draft(host="evil.example").sign())
    refused(Draft(host=f"{STS.host}:443").sign())
    refused(Draft(host=f"{STS.host}.").sign())


@pytest.mark.parametrize("minutes", [5, 6, 60, 60 * 24 * 365, -5, -6, -60])
def test_a_request_of_another_time_is_refused_and_told_the_clock(minutes: int) -> None:
    with pytest.raises(Unauthenticated, match="clock"):
        check(Draft(at=NOW - timedelta(minutes=minutes)).sign())


@pytest.mark.parametrize("seconds", [0, 299, -299])
def test_clocks_may_differ_a_little(seconds: int) -> None:
    assert timedelta(seconds=abs(seconds)) < SIGNATURE_LIFETIME
    assert check(Draft(at=NOW - timedelta(seconds=seconds)).sign())


@pytest.mark.parametrize(
    "date", ["20261302T090000Z", "20260230T090000Z", "20260302T250000Z", "20260302T090061Z", "now"]
)
def test_what_is_no_time_is_refused(date: str) -> None:
    refused(but(VALID, {DATE: date}))


def test_the_scopes_date_must_be_the_dates() -> None:
    assert "date" in refused(but(VALID, {DATE: "20260301T235959Z"}))


@pytest.mark.parametrize(
    "change",
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256  "),
        ("aws4_request", "aws4_request/x"),
        ("aws4_request", "aws5_request"),
        (", SignedHeaders", ",SignedHeaders"),
        (", SignedHeaders", ", SignedHeaders=host, SignedHeaders"),
        ("Signature=", "Signature=0"),
        ("Signature=", "Signature=,Signature="),
        ("Credential=ASIA", "Credential=../ASIA"),
        ("/sts/", "/sts/sts/"),
    ],
)
def test_an_authorization_of_another_form_is_refused(change: tuple[str, str]) -> None:
    value = VALID.headers[AUTHORIZATION]
    assert change[0] in value
    refused(but(VALID, {AUTHORIZATION: value.replace(*change)}))


def test_a_presigned_address_is_refused() -> None:
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A&X-Amz-Date=20260302T090000Z&X-Amz-Signature=" + "0" * 64
    )
    refused(Draft(method="GET", url=f"{STS.url}?{STS_BODY}&{query}", body="").sign(), "method")
    refused(Draft(url=f"{STS.url}?{STS_BODY}&{query}").sign(), "url")


def test_credentials_without_a_token_are_no_roles() -> None:
    user = Identity("AKIAIOSFODNN7EXAMPLE", "secret", None, "arn:aws:iam::123456789012:user/ada", "AIDAEXAMPLE")
    assert TOKEN in refused(Draft(identity=user).sign())


_PLACES = st.sampled_from(["method", "url", "body", *VALID.headers])
_FREE = {AUTHORIZATION, TOKEN, NONCE_HEADER, DATE}
"""Where something else may be as well-formed: what it says is for AWS, the nonce store and the clock to judge."""


@given(place=_PLACES, where=st.integers(0, 2000), with_=st.text(max_size=3), length=st.integers(0, 3))
@settings(max_examples=400, deadline=None)
def test_any_change_to_a_signed_request_is_refused_or_leaves_only_ours_to_forward(
    place: str, where: int, with_: str, length: int
) -> None:
    old = VALID.headers[place] if place in VALID.headers else str(getattr(VALID, place))
    at = where % (len(old) + 1)
    new = old[:at] + with_ + old[at + length :]
    assume(new != old)
    changed = but(VALID, {place: new}) if place in VALID.headers else replace(VALID, **{place: new})
    try:
        accepted = check(changed)
    except (Invalid, Unauthenticated):
        return
    assert place in _FREE
    assert accepted.endpoint == STS
    _is_clean(accepted)


_ANY: Any = st.text(max_size=40) | st.sampled_from([*VALID.headers.values(), STS.url, STS_BODY, "POST"])


@given(
    method=_ANY,
    url=_ANY,
    body=_ANY,
    headers=st.dictionaries(st.sampled_from([*VALID.headers]) | st.text(max_size=20), _ANY, max_size=9),
)
@settings(max_examples=200, deadline=None)
def test_anything_at_all_is_refused_with_a_reason_or_clean(
    method: str, url: str, body: str, headers: dict[str, str]
) -> None:
    try:
        _is_clean(check(SignedRequest(method, url, headers, body)))
    except (Invalid, Unauthenticated) as refusal:
        assert refusal.message


def _is_clean(accepted: AcceptedRequest) -> None:
    assert {name for name, _ in accepted.headers} == VALID.headers.keys()
    for _, value in accepted.headers:
        assert value.isascii()
        assert value.isprintable()
        assert value == value.strip()
