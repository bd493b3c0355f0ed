"""`avail --plan`: the coming hours, as each kind of screen can show them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev.wire import codec
from gpudev.wire.queue import ClusterPlan, TypePlan
from support.client.cli_process import Cli
from support.client.estimates import make_node, make_start
from support.client.fake_api import FakeApi

pytestmark = pytest.mark.slow

RESERVATION = "3f2a9c1e-0000-4000-8000-000000000000"
REASON = "0 of 4 GPUs free on any h100 node; first fit when reservation 5b0c7d4d ends"


def make_plan(nodes: int = 2, **changes: Any) -> ClusterPlan:
    now = datetime.now(UTC)
    mine = make_start(
        2,
        gpu_count=4,
        mine=True,
        reservation_id=RESERVATION,
        expected=now + timedelta(minutes=40, seconds=20),
        latest=now + timedelta(hours=2),
        nodes=["h100-0"],
        reason=REASON,
    )
    h100 = TypePlan(
        gpu_type="h100",
        nodes=[make_node(f"h100-{number}", 8, now, (0, 8), (3, 4), (6, 0)) for number in range(nodes)],
        waiting=[make_start(1), mine],
        waiting_in_all=2,
    )
    a100 = TypePlan(
        gpu_type="a100", nodes=[make_node("a100-0", 8, now, (0, 0), offers=False)], waiting=[], waiting_in_all=0
    )
    return ClusterPlan(**({"begins": now, "until": now, "gpu_types": [a100, h100]} | changes))


@pytest.fixture
def plan(api: FakeApi) -> ClusterPlan:
    api.plan = make_plan()
    return api.plan


def test_a_pipe_gets_plain_text_of_80_columns_and_whole_sentences(cli: Cli, plan: ClusterPlan) -> None:
    done = cli.run("avail", "--plan")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    *chart, last = done.stdout.splitlines()
    assert max(len(line) for line in chart) <= 80
    assert chart[0].startswith("UTC ")
    assert chart[0].count("|") >= 5
    assert "h100: 0 of 16 GPUs free now, 2 queued" in chart
    assert "a100: 0 of 0 GPUs free now, 1 of 1 nodes closed" in chart
    [row] = [line for line in chart if line.startswith("  h100-0")]
    assert row.split()[1] == "8/8"
    bar = row.split()[2]
    assert bar.startswith("#######")
    assert ">" in bar
    assert "444" in bar
    assert bar.endswith("....")
    start = plan.gpu_types[1].waiting[1].latest
    assert start is not None
    latest = f"{start:%H:%M} UTC" if start.date() == plan.begins.date() else f"{start:%Y-%m-%d %H:%M} UTC"
    told = f"4 x h100 (3f2a9c1e), expected in about 40 min, at the latest {latest}; {REASON}"
    assert last == f"you, position 2: {told}"


def test_a_terminal_gets_blocks_that_fit_it(cli: Cli, plan: ClusterPlan) -> None:
    for columns in (60, 80, 200):
        with cli.terminal("avail", "--plan", columns=columns) as terminal:
            assert terminal.wait() == 0
            [row] = [line for line in terminal.text.splitlines() if line.startswith("  h100-0")]
            bar = row.split()[2]
            assert set(bar) == {"█", "▶", "▄", "·"}
            assert columns / 3 < len(bar) <= columns
            lines = terminal.text.splitlines()
            at = next(index for index, line in enumerate(lines) if line.startswith("you, position 2:"))
            assert all(line.startswith("    ") for line in lines[at + 1 :])
            assert " ".join(" ".join(lines[at:]).split()).endswith(REASON)


def test_no_color_means_no_colour_and_ones_own_start_is_still_seen(cli: Cli, plan: ClusterPlan) -> None:
    with cli.terminal("avail", "--plan") as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[32m" in terminal.raw
    with cli.terminal("avail", "--plan", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw
        assert "▶" in terminal.text


@pytest.mark.parametrize(
    "env", [{"TERM": "dumb"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["dumb", "ascii"]
)
def test_a_terminal_without_blocks_gets_digits(cli: Cli, plan: ClusterPlan, env: dict[str, str | None]) -> None:
    with cli.terminal("avail", "--plan", env={**env, "NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert terminal.raw.isascii()
        assert b"\x1b" not in terminal.raw
        assert "?" not in terminal.text
        [row] = [line for line in terminal.text.splitlines() if line.startswith("  h100-0")]
        assert set(row.split()[2]) == {"#", ">", "4", "."}


def test_times_are_the_readers_own(cli: Cli, plan: ClusterPlan) -> None:
    assert cli.run("avail", "--plan", env={"TZ": "JST-9"}).stdout.startswith("JST ")


def test_json_is_the_apis_answer(cli: Cli, api: FakeApi, plan: ClusterPlan) -> None:
    done = cli.run("avail", "--plan", "--json", "--hours", "0.5", "--type", "h100")
    answer = json.loads(done.stdout)
    assert answer["gpu_types"] == codec.encode_model([plan.gpu_types[1]])
    [asked] = api.requests("GET", "/v1/cluster/plan")
    assert asked.query == {"hours": ["0.5"], "gpu_type": ["h100"]}


def test_hours_and_type_say_what_is_shown(cli: Cli, api: FakeApi, plan: ClusterPlan) -> None:
    text = cli.run("avail", "--plan", "--type", "a100").stdout
    assert "a100-0" in text
    assert "h100" not in text
    assert api.requests("GET", "/v1/cluster/plan")[0].query["hours"] == ["12"]
    refused = cli.run("avail", "--plan", "--hours", "100")
    assert refused.returncode == 5
    assert "at most 72" in refused.stderr


def test_hours_go_with_the_plan(cli: Cli, api: FakeApi) -> None:
    done = cli.run("avail", "--hours", "4")
    assert done.returncode == 2
    assert "--plan" in done.stderr
    assert not api.asked


def test_of_a_thousand_nodes_a_page_is_shown(cli: Cli, api: FakeApi) -> None:
    api.plan = make_plan(958)
    lines = cli.run("avail", "--plan").stdout.splitlines()
    assert "  and 950 more nodes; --all shows them" in lines
    assert len(lines) < 24
    every = cli.run("avail", "--plan", "--all").stdout
    assert "h100-957" in every
    assert "more nodes" not in every


def test_whoever_is_far_back_is_told_where_to_look(cli: Cli, api: FakeApi) -> None:
    waiting = [make_start(position) for position in range(1, 201)]
    api.plan = make_plan(gpu_types=[TypePlan(gpu_type="h100", nodes=[], waiting=waiting, waiting_in_all=1950)])
    last = cli.run("avail", "--plan").stdout.splitlines()[-1]
    assert last.startswith("1,950 requests are queued for h100; the plan shows only the first 200.")
    assert "gpu-dev list" in last


def test_one_that_cannot_be_promised_anything_is_listed_with_the_reason(cli: Cli, api: FakeApi) -> None:
    mine = make_start(1, mine=True, reservation_id=RESERVATION, reason="there is no t4 node")
    api.plan = make_plan(gpu_types=[TypePlan(gpu_type="t4", nodes=[], waiting=[mine], waiting_in_all=1)])
    text = cli.run("avail", "--plan").stdout
    assert "t4: no nodes, 1 queued" in text
    assert "you, position 1: 2 x t4 (3f2a9c1e), start not known yet; there is no t4 node" in text


def test_a_name_cannot_drive_the_terminal(cli: Cli, api: FakeApi) -> None:
    node = make_node("evil\x1b[2J\nrow", 8, datetime.now(UTC), (0, 8))
    api.plan = make_plan(gpu_types=[TypePlan(gpu_type="t4", nodes=[node], waiting=[], waiting_in_all=0)])
    with cli.terminal("avail", "--plan") as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[2J" not in terminal.raw
        assert "evil?[2J?row" in terminal.text


def test_without_nodes_it_says_so(cli: Cli, api: FakeApi, plan: ClusterPlan) -> None:
    assert cli.run("avail", "--plan", "--type", "t4").stdout == "No t4 nodes.\n"
    api.plan = make_plan(gpu_types=[])
    assert cli.run("avail", "--plan").stdout == "No nodes.\n"


def test_a_server_of_the_version_before_has_no_plan(cli: Cli) -> None:
    done = cli.run("avail", "--plan")
    assert done.returncode == 4
    assert "earlier version" in done.stderr
    assert "gpu-dev list --all" not in done.stderr
