"""The attacks that must fail, each with the tests that try it: a test that is renamed or lost is missed here."""

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

ATTACKS = {  # by folder and name; which file of the folder it is in may change
    # Logging in with AWS
    "a wrong signature": "integration/access::test_a_wrong_signature_is_refused",
    "another's key id": "integration/access::test_a_signature_by_another_key_than_it_says_is_refused",
    "a replay after use": "integration/access::test_a_request_is_good_once",
    "many replays at once, to two servers": (
        "integration/access::test_a_request_is_good_once_also_when_sent_many_times_at_once_to_two_servers"
    ),
    "a replay after its time": "integration/access::test_a_request_that_was_kept_for_later_is_refused",
    "another service's signed request": "integration/access::test_another_services_signature_is_refused",
    "a request signed for another purpose": "integration/access::test_what_was_signed_for_another_purpose_is_refused",
    "another server's login, passed on": (
        "integration/access::test_a_request_signed_for_another_server_is_refused_though_the_nonce_is_ours"
    ),
    "wrong STS host, port, path, scheme, userinfo, IDNA, trailing dot": (
        "integration/access::test_another_address_is_refused_however_alike"
    ),
    "a redirect in STS's place": "integration/access::test_whatever_answers_in_awss_place_lets_nobody_in",
    "another Action, two Actions": "integration/access::test_another_action_or_a_second_one_is_refused",
    "GET with a query": "integration/access::test_another_method_is_refused",
    "a presigned address": "integration/access::test_a_presigned_address_is_refused",
    "duplicate headers": "integration/access::test_no_header_may_be_there_twice_in_another_case",
    "unexpected headers": "integration/access::test_no_header_may_be_there_besides_signed_or_not",
    "an unsigned server header": "integration/access::test_an_unsigned_header_is_refused",
    "header smuggling": "integration/access::test_no_value_smuggles_anything_along",
    "any change of anything signed": (
        "integration/access::test_any_change_to_a_signed_request_is_refused_or_leaves_only_ours_to_forward"
    ),
    "an ARN that only looks like the role": (
        "integration/access::test_an_arn_that_only_looks_like_the_role_is_refused_and_told_the_role"
    ),
    "another partition": "integration/access::test_a_partition_other_than_the_one_asked_is_refused",
    "STS slow": "integration/access::test_a_slow_answer_is_given_up_in_time",
    "STS huge, malformed, HTML": "integration/access::test_whatever_answers_in_awss_place_lets_nobody_in",
    # Other ways in
    "a forged OIDC token": "integration/access::test_a_strangers_signature_is_not_the_issuers",
    "an OIDC token of another server": ("integration/access::test_a_token_got_for_another_server_is_no_login_here"),
    "an invitation used twice": "integration/access::test_of_many_who_come_at_once_one_gets_the_key",
    "guessing keys": "integration/access::test_guessing_keys_ends_soon_for_that_address_alone",
    "guessing keys, all at once": (
        "integration/access::test_guessing_many_keys_at_the_same_moment_is_paid_for_afterwards"
    ),
    "measuring how long a wrong key takes": "integration/access::test_a_key_is_compared_as_a_whole",
    "a key that was revoked, in an open stream": "integration/api::test_a_silent_stream_ends_soon_after_its_key",
    "taking the last admin's role by a group": (
        "integration/access::test_a_group_that_was_emptied_leaves_the_last_admin_in_place"
    ),
    # Others' things
    "another user's id in every path": "integration/access::test_what_is_anothers_is_not_there",
    "more than one's role allows": "integration/access::test_every_role_may_do_what_the_table_says_and_no_more",
    # Text that is more than text
    "SQL, shell, YAML, header and path injection in every field": (
        "integration/api::test_text_stays_text_in_every_field_of_every_body"
    ),
    "the same in every path, query and header": "integration/api::test_text_stays_text_in_every_path_query_and_header",
    "YAML injection into Kubernetes' objects": (
        "unit/kubernetes::test_nothing_typed_changes_the_structure_of_what_is_made"
    ),
    "path traversal in a disk's name": "integration/api::test_what_can_never_run_is_refused_naming_the_field",
    "path traversal by links in a disk's files": (
        "integration/local::test_a_copy_holds_nothing_from_outside_whatever_is_swapped_for_links"
    ),
    "path traversal by links in a snapshot's listing": (
        "integration/local::test_a_listing_names_nothing_from_outside_whatever_is_swapped_for_links"
    ),
    "SSRF through a GitHub name": "integration/api::test_a_github_name_is_never_part_of_another_address",
    "SSRF through a redirect of the keys' source": "integration/access::test_a_redirect_is_not_followed",
    "SSRF through a webhook": "integration/notifications::test_nobody_is_led_elsewhere",
    "log injection through a library's words": "integration/system::test_a_key_in_the_wrong_place_is_not_written",
    "log injection": "integration/system::test_a_forged_line_stays_within_the_event_it_came_with",
    "audit log injection": "integration/access::test_nothing_from_outside_breaks_a_line_or_hides_in_it",
    # Too much, too slow
    "oversized JSON": "integration/api::test_too_large_a_body_is_refused",
    "deeply nested JSON": "integration/api::test_deep_and_wide_json_that_is_no_request_is_refused",
    "slow-loris clients": "integration/api::test_two_hundred_slow_clients_keep_nobody_waiting",
    "endless headers": "integration/api::test_endless_headers_are_refused",
    "headers behind a body": "integration/api::test_what_comes_behind_a_body_is_no_header",
    "streams that take all connections": "integration/api::test_nobody_holds_all_connections_with_streams",
    "filling the audit log": "integration/access::test_one_address_cannot_fill_the_log_with_refusals",
    # ssh through HTTPS
    "another user's reservation through the proxy": (
        "integration/sessions::test_another_users_reservation_does_not_exist"
    ),
    "a forged proxy token": "integration/sessions::test_what_is_no_token_opens_nothing",
    "an expired proxy token": "integration/sessions::test_a_token_opens_sessions_for_a_minute",
    "guessing proxy tokens": "integration/sessions::test_an_address_that_tries_many_tokens_has_to_wait",
    "a WebSocket from another origin": (
        "integration/sessions::test_no_web_page_gets_in_and_no_token_stands_in_an_address"
    ),
    "a recorded address of the control plane's": "integration/sessions::test_no_record_leads_to_the_control_plane",
    "taking all sessions": "integration/sessions::test_nobody_takes_all_sessions",
    "a session without a trace": (
        "integration/sessions::test_a_session_is_in_the_audit_log_when_it_opens_and_when_it_ends"
    ),
    "a session whose key was revoked": "e2e/sessions::test_a_session_ends_with_the_key_that_opened_it",
    "forwarding to the control plane, through the proxy": (
        "e2e/sessions::test_nothing_is_forwarded_to_the_control_plane_or_to_where_clouds_tell_secrets"
    ),
    "forwarding to a refused port by every name": (
        "contracts/sessions/sshd::test_a_port_of_this_machine_that_is_refused_is_refused_under_every_name"
    ),
    "forwarding to the metadata address": "contracts/ssh::test_nobody_is_led_to_where_clouds_tell_secrets",
    "forwarding to the metadata address by another name, one machine": (
        "contracts/sessions/sshd::test_nobody_is_led_to_where_clouds_tell_secrets_by_another_name"
    ),
    "forwarding to the metadata address by another name, Kubernetes": (
        "contracts/sessions/dev_server::test_nobody_is_led_to_the_clusters_api_server_nor_to_secrets_by_another_name"
    ),
    "a proxy token for another reservation of one's own": (
        "integration/sessions::test_a_token_is_for_one_reservation_and_not_for_another_of_the_same_user"
    ),
    "hostile reports of a pod": (
        "unit/kubernetes::test_a_termination_message_hides_neither_its_own_pods_end_nor_another_pod"
    ),
    "hostile reports of a pod that really runs": (
        "e2e/kubernetes::test_what_a_pod_says_when_it_ends_fails_no_observation"
    ),
    "other people's pods and the control plane, over the network": "unit/kubernetes::test_a_dev_server_does_not_reach",
    # Jupyter through HTTPS
    "another user's Jupyter, forged cookies and links, WebSockets and requests from another origin": (
        "e2e/sessions::test_a_browser_that_followed_the_link_reaches_jupyter_and_nobody_else_does"
    ),
    "tiny pieces of a Jupyter or an ssh client that stall everybody": (
        "integration/sessions::test_health_is_answered_while_tiny_pieces_arrive"
    ),
    "tiny pieces, one machine": "integration/sessions::test_the_bytes_of_an_attack_never_reach_the_api",
    "guessing Jupyter's cookies and links": "integration/sessions::test_an_address_that_tries_many_has_to_wait",
    "a page from elsewhere": "unit/sessions::test_pages_from_elsewhere_may_not",
    "what opens the way, told to a hostile Jupyter": "unit/sessions::test_nothing_that_opens_a_way_through_us_goes_in",
    "headers and cookies of a hostile Jupyter for other pages": (
        "unit/sessions::test_nothing_that_reaches_beyond_its_path_comes_out"
    ),
    # A server that means ill
    "a server that plays with the terminal": (
        "integration/client::test_what_a_server_calls_somebody_does_nothing_to_their_terminal"
    ),
    "secrets in anything that can be read": "e2e/access::test_no_secret_is_ever_anywhere_it_could_be_read",
}


@cache
def names_in(folder: str) -> frozenset[str]:
    texts = [file.read_text() for file in (TESTS / folder).glob("*.py")]
    return frozenset(name for text in texts for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.M))


@pytest.mark.parametrize("attack", ATTACKS)
def test_there_is_a_test_that_tries(attack: str) -> None:
    folder, _, name = ATTACKS[attack].partition("::")
    assert name in names_in(folder), f"nothing tries {attack!r} any more: tests/{folder} has no {name}"
