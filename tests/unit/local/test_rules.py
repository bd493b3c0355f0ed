"""The local adapter's decisions, without a process: shares, devices, limits, uids, foreign use, what facts mean."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from gpudev.adapters.local.machine import gpu_use, isolation, nvml, processes
from gpudev.adapters.local.machine.cgroups import CgroupLimiter, find_cgroup_limiter, resource_limits
from gpudev.adapters.local.machine.gpu_use import ManagedUse, UnmanagedUse
from gpudev.adapters.local.machine.isolation import (
    IsolationMode,
    IsolationResult,
    candidate_modes,
    describe_isolation,
    first_user_uid,
)
from gpudev.adapters.local.machine.launch_spec import LaunchSpec, inside_paths
from gpudev.adapters.local.machine.nodes import LocalNode, LocalNodes
from gpudev.adapters.local.machine.processes import (
    ProcessIdentity,
    boot_id,
    identify,
    identify_self,
    is_alive,
    open_pidfd,
)
from gpudev.adapters.local.servers.launcher import GangAddresses, Launcher, server_environment, visible_devices
from gpudev.adapters.local.servers.member_process import MemberState
from gpudev.adapters.local.servers.observation import node_state, server_state
from gpudev.adapters.local.servers.ssh_listeners import SshListeners
from gpudev.adapters.local.servers.state_folder import (
    InvalidServerRecord,
    MemberExit,
    ServerFolder,
    ServerRecord,
    StateFolder,
    ensure_home,
    ensure_owner,
    server_record_from_json,
    server_record_to_json,
)
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.domain.cluster import NodeShare
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_reservation_id
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.cluster import HomeVolume, ServerPhase, ServerSpec
from support.local.local_world import GB, IS_ROOT, NODES, ONLY_LINUX

REAL = LocalNode(
    "real",
    "h200",
    4,
    simulated=False,
    cpus=16,
    memory=64 * GB,
    devices=tuple((f"/dev/nvidia{n}",) for n in range(4)),
    nvml=(2, 3, 5, 7),
)
NOTHING = ManagedUse(frozenset(), frozenset())
RID = ReservationId(UUID("0f8fad5b-d9cb-469f-a165-70867728950e"))
WAY_IN = SshEndpoint("127.0.0.1", 2222, "dev", "ssh-ed25519 AAAA")


def spec(*shares: NodeShare) -> ServerSpec:
    return ServerSpec(
        reservation_id=RID,
        pod_name="gpu-dev-0f8fad5b",
        user_id=UserId(3),
        username="ada",
        gpu_type="h100",
        gpu_count=sum(share.units for share in shares),
        shares=shares or (NodeShare(0, "a", 1, (0,)),),
        ssh_public_keys=("ssh-ed25519 AAAA",),
        disk_id=None,
        disk_name=None,
    )


class TestWhatIsRefused:
    launcher = Launcher(
        StateFolder(Path("/nowhere")), NODES, IsolationMode.PLAIN, CgroupLimiter(), SshListeners("127.0.0.1", 0)
    )

    @pytest.mark.parametrize(
        ("shares", "said"),
        [
            ((NodeShare(0, "z", 1, (0,)),), "no node named 'z'"),
            ((NodeShare(0, "a", 1, (8,)),), "no GPU 8"),
            ((NodeShare(0, "a", 1, (-1,)),), "no GPU -1"),
            ((NodeShare(0, "a", 2, (1,)),), "expected the numbers of its 2 GPUs"),
            ((NodeShare(0, "a", 2, (1, 1)),), "expected the numbers of its 2 GPUs"),
            ((NodeShare(1, "a", 1, (0,)),), "ranks"),
            ((NodeShare(0, "a", 1, (0,)), NodeShare(0, "b", 1, (0,))), "ranks"),
        ],
    )
    def test_shares_this_machine_does_not_have(self, shares: tuple[NodeShare, ...], said: str) -> None:
        with pytest.raises(ClusterError, match=said):
            self.launcher.check_spec(spec(*shares), [])

    def test_a_gpu_that_another_dev_server_has(self) -> None:
        other = replace(spec(NodeShare(0, "a", 2, (3, 4))), pod_name="gpu-dev-other")
        self.launcher.check_spec(spec(NodeShare(0, "a", 1, (5,))), [other])
        self.launcher.check_spec(spec(NodeShare(0, "b", 1, (4,))), [other])
        with pytest.raises(ClusterError, match="GPU 4 of node a is in use by gpu-dev-other"):
            self.launcher.check_spec(spec(NodeShare(0, "a", 1, (4,))), [other])


class TestVisibleDevices:
    share = NodeShare(0, "real", 2, (1, 3))

    def test_simulated_gpus_keep_their_numbers(self) -> None:
        assert visible_devices(self.share, NODES.nodes[0], IsolationMode.ROOT) == {"CUDA_VISIBLE_DEVICES": "1,3"}

    def test_where_only_own_device_files_exist_the_driver_counts_from_zero(self) -> None:
        assert visible_devices(self.share, REAL, IsolationMode.ROOT)["CUDA_VISIBLE_DEVICES"] == "0,1"

    def test_where_all_device_files_exist_the_numbers_are_those_of_the_driver(self) -> None:
        found = visible_devices(self.share, REAL, IsolationMode.PLAIN)
        assert found == {"CUDA_VISIBLE_DEVICES": "3,7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def test_a_cpu_node_shows_none(self) -> None:
        node = LocalNode("cpu", "cpu-x86", 0, simulated=False, cpus=4, memory=GB)
        assert visible_devices(NodeShare(0, "cpu", 1), node, IsolationMode.ROOT) == {"CUDA_VISIBLE_DEVICES": ""}


def test_what_holds_a_nul_never_reaches_a_process() -> None:
    bad = replace(spec(), name="a\0b", environment={"X": "1\0", "Y": "2"})
    view = inside_paths(IsolationMode.PLAIN, "/h", "/w", "/r", Path("/m"))
    found = server_environment(
        bad, bad.shares[0], NODES.nodes[0], mode=IsolationMode.PLAIN, uid=1, view=view, gang=GangAddresses("h", 1, (1,))
    )
    assert "Y" in found
    assert not {"X", "GPU_DEV_NAME"} & found.keys()


class TestLimits:
    def test_they_are_in_proportion_to_the_units(self) -> None:
        half = resource_limits(REAL, 2)
        assert (half.cpus, half.memory) == (8.0, 32 * GB)
        assert resource_limits(REAL, 4).cpus == 16.0

    def test_a_small_part_of_a_small_machine_is_still_usable(self) -> None:
        small = LocalNode("small", "h100", 8, simulated=True, cpus=2, memory=8 * GB)
        assert resource_limits(small, 1).cpus == 1.0
        assert resource_limits(small, 1).processes >= 1024

    def test_a_slot_of_a_cpu_node_is_a_third(self) -> None:
        node = LocalNode("cpu", "cpu-x86", 0, simulated=False, cpus=6, memory=9 * GB)
        assert (resource_limits(node, 1).cpus, resource_limits(node, 1).memory) == (2.0, 3 * GB)

    @ONLY_LINUX
    def test_they_are_written_into_a_cgroup_of_version_2(self, tmp_path: Path) -> None:
        (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
        (tmp_path / "gpu-dev").mkdir()
        (tmp_path / "gpu-dev" / "cgroup.subtree_control").write_text("")
        limiter = find_cgroup_limiter(tmp_path, is_root=True)
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
        assert "hold" in limiter.describe(IsolationMode.ROOT)
        (group,) = limiter.ensure_groups("x-0", resource_limits(REAL, 1))
        assert group == tmp_path / "gpu-dev" / "x-0"
        assert (group / "cpu.max").read_text() == "400000 100000"
        assert (group / "memory.max").read_text() == str(16 * GB)
        assert (group / "pids.max").read_text() == "8192"

    @ONLY_LINUX
    def test_without_any_cgroups_that_is_said(self, tmp_path: Path) -> None:
        limiter = find_cgroup_limiter(tmp_path, is_root=True)
        assert limiter.ensure_groups("x-0", resource_limits(REAL, 1)) == ()
        assert "no cgroups of version 2" in limiter.describe(IsolationMode.USER)
        assert "only the number of processes" in limiter.describe(IsolationMode.ROOT)

    @ONLY_LINUX
    def test_they_are_written_into_cgroups_of_version_1_one_for_each_controller(self, tmp_path: Path) -> None:
        for controller in ("memory", "pids"):
            (tmp_path / controller).mkdir()
            (tmp_path / controller / "cgroup.procs").touch()
        (tmp_path / "memory" / "memory.limit_in_bytes").touch()
        limiter = find_cgroup_limiter(tmp_path, is_root=True)
        assert limiter.limits("pids")
        assert not limiter.limits("cpu")
        expected = "limits on memory and processes hold in proportion to the GPUs (the cgroup controllers cpu are not"
        assert expected in limiter.describe(IsolationMode.ROOT)
        memory, pids = limiter.ensure_groups("x-0", resource_limits(REAL, 1))
        assert memory == tmp_path / "memory" / "gpu-dev" / "x-0"
        assert (memory / "memory.limit_in_bytes").read_text() == str(16 * GB)
        assert (pids / "pids.max").read_text() == "8192"
        assert not (pids / "memory.limit_in_bytes").exists()

    def test_an_ordinary_user_sets_none_even_where_roots_group_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
        (tmp_path / "gpu-dev").mkdir()
        assert find_cgroup_limiter(tmp_path, is_root=False).folders == ()

    @ONLY_LINUX
    def test_missing_controllers_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "cgroup.controllers").write_text("cpu pids")
        assert "memory" in find_cgroup_limiter(tmp_path, is_root=True).unavailable_reason


class TestIsolation:
    def test_the_best_way_is_tried_first_and_the_last_one_always_works(self) -> None:
        assert candidate_modes(is_root=True, is_linux=True)[0] is IsolationMode.ROOT
        assert candidate_modes(is_root=False, is_linux=True) == (IsolationMode.USER, IsolationMode.PLAIN)
        assert candidate_modes(is_root=False, is_linux=False) == (IsolationMode.PLAIN,)

    @pytest.mark.parametrize("mode", list(IsolationMode))
    def test_every_way_is_one_sentence_with_what_was_refused(self, mode: IsolationMode) -> None:
        text = describe_isolation(IsolationResult(mode, ("unshare: not permitted",)), "nothing is limited")
        assert text.endswith("; nothing is limited.")
        assert "unshare: not permitted" in text
        assert text.count(".") == 1

    def test_uids_are_high_unless_the_machine_has_none_so_high(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uid_map = tmp_path / "uid_map"
        monkeypatch.setattr(isolation, "_UID_MAP", uid_map)
        assert first_user_uid() == 600_000
        uid_map.write_text("         0          0 4294967295\n")
        assert first_user_uid() == 600_000
        uid_map.write_text("         0     100000      65536\n")
        assert first_user_uid() + isolation.MAX_USERS < 65536


class TestForeignUse:
    nodes = LocalNodes((REAL,), "made up")

    def test_processes_that_are_not_below_a_dev_server_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nvml, "computing_pids", lambda: {0: frozenset(), 3: frozenset({os.getpid()})})
        assert gpu_use.find_unmanaged_use(self.nodes, NOTHING).indices == {"real": frozenset({1})}
        ours = ManagedUse(frozenset({os.getppid()}), frozenset())
        assert gpu_use.find_unmanaged_use(self.nodes, ours).indices == {"real": frozenset()}

    def test_a_pid_that_does_not_exist_here_is_foreign_only_on_a_gpu_nobody_holds(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nvml, "computing_pids", lambda: {2: frozenset({2**30}), 3: frozenset({2**30})})
        ours = ManagedUse(frozenset(), frozenset({("real", 1)}))
        assert gpu_use.find_unmanaged_use(self.nodes, ours).indices == {"real": frozenset({0})}

    def test_a_driver_that_does_not_answer_offers_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def silent() -> dict[int, frozenset[int]]:
            raise Unavailable("no answer")

        monkeypatch.setattr(nvml, "computing_pids", silent)
        seen = gpu_use.find_unmanaged_use(self.nodes, NOTHING)
        assert not node_state(REAL, seen, "here").ready
        assert node_state(NODES.nodes[0], seen, "here").ready

    def test_it_is_counted_on_the_node(self) -> None:
        node = node_state(REAL, UnmanagedUse({"real": frozenset({1, 3})}), "here")
        assert (node.units, node.foreign_units, node.foreign_indices) == (4, 2, frozenset({1, 3}))


class TestWhatFactsMean:
    @staticmethod
    def member(rank: int = 0, ready: bool = True, ended: MemberExit | None = None) -> MemberState:
        return MemberState(rank, "starting the ssh server", ready, ended)

    def test_a_gang_is_ready_when_all_of_it_is(self) -> None:
        seen = server_state(RID, [self.member(0), self.member(1, ready=False)], WAY_IN)
        assert (seen.phase, seen.step, seen.connection) == (ServerPhase.STARTING, "starting the ssh server", None)
        assert server_state(RID, [self.member(0), self.member(1)], WAY_IN).connection == WAY_IN

    def test_a_gang_is_dead_when_one_of_it_is_and_the_reason_says_which(self) -> None:
        seen = server_state(RID, [self.member(0), self.member(1, ended=MemberExit("killed", watched=True))], WAY_IN)
        assert seen.phase is ServerPhase.DEAD
        assert seen.reason == "member 1: killed"
        assert not seen.is_restartable

    def test_it_was_lost_unwatched_only_if_no_end_was_watched(self) -> None:
        watched, unwatched = MemberExit("a", watched=True), MemberExit("b", watched=False)
        assert server_state(RID, [self.member(ended=unwatched)], None).is_restartable
        both = [self.member(0, ended=watched), self.member(1, ended=unwatched)]
        assert not server_state(RID, both, None).is_restartable

    def test_without_members_it_is_not_ready(self) -> None:
        assert server_state(RID, [], WAY_IN).phase is ServerPhase.STARTING


class TestPapers:
    full = replace(
        spec(NodeShare(0, "a", 2, (0, 1)), NodeShare(1, "b", 2, (4, 5))),
        disk_id=DiskId(UUID("7c9e6679-7425-40de-944b-e07fc1f90ae7")),
        disk_name="work",
        name="zeile\n\u2028",
        expires_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        environment={"A": "b"},
    )

    def test_a_record_comes_back_as_it_was(self) -> None:
        record = ServerRecord(self.full, (2222, 2223), 20001)
        assert server_record_from_json(server_record_to_json(record)) == record
        at_home = replace(self.full, volume=HomeVolume("7c9e6679-7425-40de-944b-e07fc1f90ae7", 10, "here"))
        record = replace(record, spec=at_home)
        assert server_record_from_json(server_record_to_json(record)) == record

    def test_a_record_from_before_there_were_volumes_is_read(self) -> None:
        record = ServerRecord(self.full, (2222, 2223), 20001)
        written = json.loads(server_record_to_json(record))
        del written["spec"]["volume"]
        assert server_record_from_json(json.dumps(written)) == record

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"spec": {}, "ports": [], "master_port": null}'])
    def test_what_is_no_record_is_said_to_be_none(self, text: str) -> None:
        with pytest.raises(InvalidServerRecord):
            server_record_from_json(text)

    def test_a_launch_comes_back_as_it_was(self) -> None:
        launch = LaunchSpec(
            mode=IsolationMode.USER,
            uid=1,
            hostname="h",
            hostnames=("h",),
            home="/h",
            workspace="/w",
            run="/r",
            host_key="/k",
            devices=("/dev/x",),
            environment={"A": "b"},
        )
        assert LaunchSpec.from_json(launch.to_json()) == launch

    def test_a_key_with_a_line_break_is_no_key(self, tmp_path: Path) -> None:
        folder = ServerFolder(tmp_path / "server")
        folder.path.mkdir()
        folder.prepare(os.getuid(), 0o700)
        folder.write_keys(("ssh-ed25519 AAAA ada", "ssh-rsa BBBB\nssh-rsa CCCC", "  "))
        assert (folder.run / "authorized_keys").read_text() == "ssh-ed25519 AAAA ada\n"

    def test_only_folders_named_by_an_id_are_servers(self, tmp_path: Path) -> None:
        state = StateFolder(tmp_path)
        state.prepare(0o700)
        rid = new_reservation_id()
        for name in (str(rid), rid.hex, "..x", f".{rid}.new", "notes"):
            (state.servers / name).mkdir(exist_ok=True)
        assert state.list_servers() == {rid}

    def test_the_lock_is_held_as_long_as_anybody_has_the_descriptor(self, tmp_path: Path) -> None:
        member = ServerFolder(tmp_path).member(0)
        fd = member.take_lock()
        assert fd is not None
        copy = os.dup(fd)
        os.close(fd)
        assert member.is_locked()
        os.close(copy)
        assert not member.is_locked()

    def test_the_copy_of_a_folder_names_no_process_of_the_one_it_was_copied_from(self, tmp_path: Path) -> None:
        member = ServerFolder(tmp_path / "one").member(0)
        lock = member.take_lock()
        assert lock is not None
        (member.path / "process.json").write_text(json.dumps(asdict(identify_self())))
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        assert member.find_process() == identify_self()
        assert ServerFolder(tmp_path / "two").member(0).find_process() is None
        os.close(lock)

    @pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
    def test_ownership_is_set_only_where_it_is_wrong_and_links_are_not_followed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.write_text("")
        home = tmp_path / "home"
        (home / "deep").mkdir(parents=True)
        (home / "deep" / "file").write_text("")
        (home / "link").symlink_to(outside)
        ensure_owner(home, 4321)
        owners = {path: path.lstat().st_uid for path in (home, home / "deep", home / "deep" / "file", home / "link")}
        assert set(owners.values()) == {4321}
        assert outside.stat().st_uid == 0
        (home / "deep" / "file").chmod(0o600)
        changed = (home / "deep" / "file").stat().st_ctime_ns
        ensure_home(home, 4321)
        assert (home / "deep" / "file").stat().st_ctime_ns == changed

    def test_removing_a_tree_does_not_follow_links(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_text("")
        tree = tmp_path / "tree"
        (tree / "locked").mkdir(parents=True)
        (tree / "locked" / "file").write_text("")
        (tree / "link").symlink_to(outside)
        (tree / "locked").chmod(0)
        remove_folder(tree)
        assert not tree.exists()
        assert (outside / "kept").exists()


class TestProcesses:
    def test_this_process_is_alive_and_another_boot_is_not(self) -> None:
        this = identify_self()
        assert this.pid == os.getpid()
        assert is_alive(this)
        assert not is_alive(replace(this, boot="another"))
        assert not is_alive(replace(this, started="0"))

    def test_a_zombie_is_dead(self) -> None:
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identify(child.pid) is None
        assert not is_alive(ProcessIdentity(child.pid, "1", boot_id()))
        child.wait()

    def test_whoever_sets_the_clock_changes_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on macOS, where psutil moves the time a process was created by how far the clock was set."""
        monkeypatch.setattr(processes, "_IS_LINUX", False)
        this = identify_self()
        monkeypatch.setattr(psutil.Process, "create_time", lambda _: 1.0)
        assert is_alive(this)
        assert identify(os.getpid()) == this

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no descriptors for processes")
    def test_a_pid_that_changed_hands_is_not_opened(self) -> None:
        with pytest.raises(ProcessLookupError):
            open_pidfd(replace(identify_self(), started="0"))
