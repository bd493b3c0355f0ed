"""Whom AWS's answers let in: what is no such answer, and who only looks like somebody with the role."""

import pytest

from gpudev.adapters.aws.caller_identity import CallerIdentity, LoginRoles, parse_caller_identity
from gpudev.domain.errors import Forbidden, Unauthenticated, Unavailable
from support.access.aws_signatures import ADA
from support.access.sts_stub import ACCOUNT, ROLE, Identity
from support.access.sts_stub.identities import any_caller, assumed, single_sign_on
from support.access.sts_stub.server import NAMESPACE, caller_identity, error

ROLES = LoginRoles([ROLE, "GpuOps"], [ACCOUNT, "210987654321"])
GOOD = caller_identity(ADA)
_RESULT = GOOD[GOOD.index("<GetCallerIdentityResult>") : GOOD.index("<ResponseMetadata>")]


def read(body: str | bytes, status: int = 200, content_type: str = "text/xml") -> CallerIdentity:
    return parse_caller_identity(status, content_type, body.encode() if isinstance(body, str) else body)


def test_who_somebody_is_is_read_from_an_answer_as_sts_sends_it() -> None:
    assert read(GOOD, content_type="text/xml; charset=utf-8") == CallerIdentity(ADA.arn, ACCOUNT, ADA.user_id)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<",
        "<html><body>Please log in to the network.</body></html>",
        '{"GetCallerIdentityResponse": {"GetCallerIdentityResult": {"Arn": "arn"}}}',
        GOOD[:-20],
        GOOD + GOOD,
        GOOD.replace(NAMESPACE, "https://iam.amazonaws.com/doc/2010-05-08/"),
        GOOD.replace(f' xmlns="{NAMESPACE}"', ""),
        GOOD.replace("GetCallerIdentityResponse", "AssumeRoleResponse"),
        GOOD.replace("GetCallerIdentityResult", "AssumeRoleResult"),
        GOOD.replace("<Arn>", "<Arn>arn:aws:sts::1:x</Arn><Arn>"),
        GOOD.replace("<Account>", "<Extra/><Account>"),
        GOOD.replace("<GetCallerIdentityResult>", _RESULT + "<GetCallerIdentityResult>"),
        GOOD.replace("<UserId>", "<Userid>").replace("</UserId>", "</Userid>"),
        GOOD.replace("<Arn>", "<Arn><b/>"),
        GOOD.replace(ADA.user_id, ""),
        GOOD.replace("<Arn>", "<!-- --><Arn>"),
        GOOD.replace(ADA.arn, f"<![CDATA[{ADA.arn}]]>"),
        f'<!DOCTYPE x [<!ENTITY a "{ADA.arn}">]>{GOOD.replace(ADA.arn, "&a;")}',
        f'<!DOCTYPE x SYSTEM "http://127.0.0.1/x.dtd">{GOOD}',
        GOOD.replace(ADA.arn, "&undefined;"),
        GOOD.replace("</GetCallerIdentityResponse>", f"{GOOD}</GetCallerIdentityResponse>").replace(
            "GetCallerIdentityResponse", "Wrapped", 1
        ),
    ],
)
def test_what_is_no_such_answer_lets_nobody_in(body: str) -> None:
    with pytest.raises(Unavailable):
        read(body)


def test_an_answer_in_another_encoding_hides_nothing() -> None:
    entity = f'<!DOCTYPE x [<!ENTITY a "{ADA.arn}">]>{GOOD.replace(ADA.arn, "&a;")}'
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"):
        for declared in (f'<?xml version="1.0" encoding="{encoding}"?>', ""):
            for text in (GOOD, entity):
                with pytest.raises(Unavailable):
                    read((declared + text).encode(encoding))
        with pytest.raises(Unavailable):
            read(f'<?xml version="1.0" encoding="{encoding}"?>{GOOD}')
    with pytest.raises(Unavailable):
        read(GOOD.encode() + b"\xff")


def test_an_answer_may_say_that_it_is_what_it_is() -> None:
    assert read(f'<?xml version="1.0" encoding="UTF-8"?>\n{GOOD}') == read(GOOD)


@pytest.mark.parametrize("kind", ["text/html", "application/json", "", "text/xmlish", "text/plain; text/xml"])
def test_an_answer_of_another_kind_lets_nobody_in(kind: str) -> None:
    with pytest.raises(Unavailable):
        read(GOOD, content_type=kind)


@pytest.mark.parametrize("status", [100, 201, 204, 206, 301, 302, 307, 308, 500, 503, 599])
def test_only_a_plain_success_is_one(status: int) -> None:
    with pytest.raises(Unavailable):
        read(GOOD, status)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_success_with_a_refusals_status_lets_nobody_in(status: int) -> None:
    with pytest.raises(Unavailable):
        read(GOOD, status)


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidClientTokenId", "AccessDenied", "InvalidAction"])
def test_what_aws_refuses_is_refused_with_its_code(code: str) -> None:
    with pytest.raises(Unauthenticated, match=code):
        read(error(code, "no").body, 403)


def test_ended_credentials_are_told_from_wrong_ones() -> None:
    with pytest.raises(Unauthenticated, match="aws sso login"):
        read(error("ExpiredToken", "The security token included in the request is expired").body, 403)


def test_what_aws_cannot_do_now_is_no_refusal() -> None:
    with pytest.raises(Unavailable):
        read(error("Throttling", "Rate exceeded").body, 400)


def test_a_refusals_strange_words_are_not_passed_on() -> None:
    with pytest.raises(Unavailable) as caught:
        read(error("gpudev_secret key\nX", "no").body, 403)
    assert "gpudev_secret" not in caught.value.message


def admit(identity: Identity, partition: str = "aws") -> str:
    person = ROLES.admit(CallerIdentity(identity.arn, identity.account, identity.user_id), partition)
    assert person.provider == "aws"
    assert person.role is None
    return person.username


def test_the_role_itself_and_the_permission_set_of_its_name_may_come_in() -> None:
    assert admit(single_sign_on("ada")) == "ada"
    assert admit(single_sign_on("ada", account="210987654321")) == "ada"
    assert admit(assumed(ROLE, "ada")) == "ada"
    assert admit(assumed("GpuOps", "i-0123456789abcdef0")) == "i-0123456789abcdef0"


def test_a_sessions_name_is_a_users_name_in_lower_case() -> None:
    person = ROLES.admit(CallerIdentity(*_of(single_sign_on("Ada.Lovelace@Example.com"))), "aws")
    assert (person.username, person.email) == ("ada.lovelace@example.com", "ada.lovelace@example.com")


def test_everybody_has_a_subject_of_their_own() -> None:
    others = [
        single_sign_on("ada"),
        single_sign_on("ada", account="210987654321"),
        single_sign_on("eve"),
        assumed(ROLE, "ada"),
        assumed("GpuOps", "ada"),
    ]
    assert len({ROLES.admit(CallerIdentity(*_of(each)), "aws").subject for each in others}) == len(others)
    made_anew = assumed(f"AWSReservedSSO_{ROLE}_fedcba9876543210", "ADA")
    assert (
        ROLES.admit(CallerIdentity(*_of(made_anew)), "aws").subject
        == ROLES.admit(CallerIdentity(*_of(ADA)), "aws").subject
    )


SSO = f"AWSReservedSSO_{ROLE}_0123456789abcdef"


@pytest.mark.parametrize(
    "arn",
    [
        # Another role, however alike
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}2/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/x{ROLE}/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE.lower()}/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/path/{ROLE}/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/x/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/Other/{ROLE}",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}_/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}_0123456789abcde/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}_0123456789abcdef0/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}_0123456789ABCDEF/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}_0123456789abcdeg/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_{ROLE}X_0123456789abcdef/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_X{ROLE}_0123456789abcdef/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/awsreservedsso_{ROLE}_0123456789abcdef/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/x{SSO}/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}x/ada",
        # Nobody's role
        f"arn:aws:iam::{ACCOUNT}:user/{ROLE}",
        f"arn:aws:iam::{ACCOUNT}:user/{SSO}/ada",
        f"arn:aws:iam::{ACCOUNT}:user/assumed-role/{ROLE}/ada",
        f"arn:aws:iam::{ACCOUNT}:role/{ROLE}",
        f"arn:aws:iam::{ACCOUNT}:role/aws-reserved/sso.amazonaws.com/{SSO}",
        f"arn:aws:iam::{ACCOUNT}:root",
        f"arn:aws:sts::{ACCOUNT}:federated-user/{ROLE}",
        f"arn:aws:sts::{ACCOUNT}:federated-user/assumed-role/{SSO}/ada",
        f"arn:aws:sts::{ACCOUNT}:self",
        # Another account or partition
        f"arn:aws:sts::999999999999:assumed-role/{SSO}/ada",
        f"arn:aws:sts::{ACCOUNT}0:assumed-role/{SSO}/ada",
        f"arn:aws:sts:::assumed-role/{SSO}/ada",
        f"arn:aws-cn:sts::{ACCOUNT}:assumed-role/{SSO}/ada",
        f"arn:aws-us-gov:sts::{ACCOUNT}:assumed-role/{SSO}/ada",
        f"arn:aws:sts:us-east-2:{ACCOUNT}:assumed-role/{SSO}/ada",
        # Anything before, after or within
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/ada\n",
        f"\narn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/ada",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/a",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/ada bob",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/аda",
        f"arn:aws:sts::１２３４５６７８９０１２:assumed-role/{SSO}/ada",
        f"ARN:aws:sts::{ACCOUNT}:assumed-role/{SSO}/ada",
        "",
    ],
)
def test_an_arn_that_only_looks_like_the_role_is_refused_and_told_the_role(arn: str) -> None:
    account = arn.split(":")[4] if arn.count(":") > 4 else ACCOUNT
    session = arn.rsplit("/", 1)[-1]
    with pytest.raises(Forbidden, match=ROLE) as caught:
        admit(any_caller(arn, f"AROAEXAMPLEROLE000000:{session}", account))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("account", "user_id"),
    [
        ("210987654321", "AROAEXAMPLEROLE000000:ada"),  # an account of the list, but not the one of the ARN
        (ACCOUNT, "AROAEXAMPLEROLE000000:eve"),
        (ACCOUNT, "AIDAEXAMPLEUSER000000"),
        (ACCOUNT, "AIDAEXAMPLEUSER000000:ada"),
        (ACCOUNT, f"{ACCOUNT}:ada"),
        (ACCOUNT, "AROAEXAMPLEROLE000000:ada:ada"),
        (ACCOUNT, ""),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(account: str, user_id: str) -> None:
    with pytest.raises(Forbidden):
        admit(any_caller(ADA.arn, user_id, account))


@pytest.mark.parametrize("tail", ["\n", " bob", "/eve", ":x", "é"])
def test_what_stands_after_the_session_is_not_overlooked(tail: str) -> None:
    with pytest.raises(Forbidden):
        admit(any_caller(ADA.arn + tail, ADA.user_id))


def test_a_partition_other_than_the_one_asked_is_refused() -> None:
    identity = assumed(SSO, "ada", partition="aws-us-gov")
    assert admit(identity, "aws-us-gov") == "ada"
    with pytest.raises(Forbidden):
        admit(identity, "aws")


def _of(identity: Identity) -> tuple[str, str, str]:
    return identity.arn, identity.account, identity.user_id
