"""What becomes of a container of any image: the account, the home, sudo, the other members of a gang."""

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

import asyncssh
import pytest

from support.fixtures.dev_server import Build
from support.polling import eventually
from support.ssh.dev_server_container import CONTAINED, CONTAINER, DEV, IS_ROOT, NOBODY, ORDINARY, Builder, DevServer
from support.ssh.ssh_server import OpenScreen

pytestmark = pytest.mark.slow


@pytest.fixture
def image(build: Build) -> Builder:
    """A container that is not started yet."""
    return build(CONTAINER)


def test_the_account_is_made_before_whoever_had_its_number(image: Builder) -> None:
    server = image.start()
    assert server.ssh("id -un; id -gn; id -G").stdout == b"dev\ndev\n1000 992\n"
    passwd = (image.root / "etc" / "passwd").read_text().splitlines()
    assert passwd[1:] == ["dev:x:1000:1000::/home/dev:/bin/bash", "ubuntu:x:1000:1000:U:/home/ubuntu:/bin/bash"]
    assert "dev:*:" in (image.root / "etc" / "shadow").read_text()
    assert stat.S_IMODE((image.root / "etc" / "shadow").stat().st_mode) == 0o640


def test_starting_again_changes_nothing(image: Builder) -> None:
    image.start().stop()
    before = {path: path.read_bytes() for path in (image.root / "etc").rglob("*") if path.is_file()}
    server = image.start()
    assert {path: path.read_bytes() for path in (image.root / "etc").rglob("*") if path.is_file()} == before
    assert server.ssh("true").returncode == 0


def test_an_account_of_that_name_with_another_number_becomes_the_owner_of_the_disk(image: Builder) -> None:
    with (image.root / "etc" / "passwd").open("a") as passwd:
        passwd.write("dev:x:1001:1001::/srv/dev:/usr/sbin/nologin\n")
    assert image.start().ssh("id -u; echo $HOME $SHELL; id -un").stdout == b"1000\n/home/dev /bin/bash\ndev\n"


def test_the_shell_that_somebody_chose_is_kept_also_while_it_runs(image: Builder) -> None:
    (image.root / "opt" / "shell").write_text("#!/bin/sh\necho chosen shell $0 $*\n")
    (image.root / "opt" / "shell").chmod(0o755)
    server = image.start()
    passwd = image.root / "etc" / "passwd"
    passwd.write_text(passwd.read_text().replace("/home/dev:/bin/bash", "/home/dev:/opt/shell"))  # chsh
    assert server.ssh("something").stdout == b"chosen shell /opt/shell -c something\n"
    (image.root / "opt" / "shell").unlink()
    assert server.ssh("echo $SHELL").stdout == b"/bin/bash\n"


def test_sudo_asks_for_no_password_where_there_is_sudo(image: Builder) -> None:
    image.start()
    sudoers = image.root / "etc" / "sudoers.d" / "gpu-dev"
    assert sudoers.read_text() == "dev ALL=(ALL:ALL) NOPASSWD: ALL\n"
    assert (stat.S_IMODE(sudoers.stat().st_mode), sudoers.stat().st_uid) == (0o440, 0)


def test_an_image_without_sudo_gets_none(image: Builder) -> None:
    shutil.rmtree(image.root / "etc" / "sudoers.d")
    image.start()
    assert not (image.root / "etc" / "sudoers.d").exists()


def test_a_login_shell_finds_the_programs_of_the_image(image: Builder, open_screen: OpenScreen) -> None:
    """Debian's /etc/profile sets a PATH of its own."""
    server = image.start()
    screen = open_screen(server)
    screen.type("of-the-image; echo left=${GPU_DEV_IMAGE_PATH-nothing}\n")
    screen.wait_for("the image has it\nleft=nothing")


def test_a_fresh_home_begins_with_the_skeleton(image: Builder) -> None:
    image.home.mkdir(parents=True)
    image.home.chmod(0o777)  # as an emptyDir is
    (image.home / "lost+found").mkdir()  # as a fresh disk has
    server = image.start()
    assert (image.home / ".bashrc").read_text() == "# from the skeleton\n"
    assert (image.home / ".config" / "deep").stat().st_uid == DEV
    assert stat.S_IMODE(image.home.stat().st_mode) == 0o755
    assert server.ssh("echo mine > file && cat file").stdout == b"mine\n"


def test_a_home_that_is_lived_in_is_left_alone_but_for_what_is_wrong_at_its_top(image: Builder) -> None:
    (image.home / ".ssh").mkdir(parents=True)
    (image.home / "deep").mkdir()
    (image.home / "deep" / "file").write_text("root's own")
    (image.home / ".config").symlink_to("/etc")
    server = image.start()
    assert not (image.home / ".bashrc").exists()
    assert image.home.stat().st_uid == (image.home / ".ssh").stat().st_uid == DEV
    assert (image.home / "deep").stat().st_uid == (image.home / "deep" / "file").stat().st_uid == 0
    assert (image.root / "etc").stat().st_uid == 0  # no link was followed
    assert server.ssh("pwd").stdout == b"/home/dev\n"


def test_a_home_with_ten_thousand_files_does_not_delay_the_start(image: Builder) -> None:
    for number in range(10_000):
        folder = image.home / str(number // 100)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).touch()
    assert image.start().milliseconds_to_banner < 3000
    assert (image.home / "0" / "0").stat().st_uid == 0


def test_the_groups_the_pod_gives_are_kept_and_roots_own_are_not(image: Builder) -> None:
    with (image.root / "etc" / "group").open("a") as group:
        group.write("disk:x:6:root\n")
    os.setgroups([6, 4242])
    try:
        server = image.start()
    finally:
        os.setgroups([0])
    assert server.ssh("id -G").stdout.split() == [b"1000", b"992", b"4242"]


def test_the_person_cannot_read_the_keys_of_the_server(container: DevServer) -> None:
    assert container.ssh("cat /gpudev/config/host_key").returncode == 1
    assert container.ssh("cat /proc/1/environ || ls -l /proc/1/fd").returncode != 0


def test_a_shell_alone_is_enough(build: Build) -> None:
    """No /etc, no bash, no /tmp, no /home: the image has a shell and cat."""
    builder = build(CONTAINER, bare=True)
    server = builder.start()
    assert server.ssh("cd; echo $SHELL $PWD $USER").stdout == b"/bin/sh /home/dev dev\n"
    assert server.ssh("cat; echo $0", stdin=bytes(range(256))).stdout == bytes(range(256)) + b"sh\n"
    assert server.ssh("echo on a terminal", options=("-tt",)).stdout == b"on a terminal\r\n"
    assert server.run("scp", str(builder.key), f"{server.address}:copied").returncode == 0
    assert (builder.home / "copied").stat().st_uid == DEV
    assert (builder.root / "etc" / "passwd").read_text().splitlines() == [
        "root:*:0:0:root:/root:/bin/sh",
        "dev:*:1000:1000::/home/dev:/bin/sh",
    ]
    assert server.ready()


def test_an_image_without_any_shell_says_so(build: Build) -> None:
    builder = build(CONTAINER, bare=True)
    (builder.root / "bin" / "sh").unlink()
    result = builder.start().ssh("true")
    assert result.returncode == 254
    assert b"gpu-dev: cannot start a process: no such file or directory" in result.stderr


def test_a_read_only_image_still_lets_people_in_and_the_log_says_what_was_left_out(image: Builder) -> None:
    """Its /etc cannot be written: a folder in the place of each file that would be."""
    for name in ("passwd", "group", "shadow"):
        (image.root / "etc" / name).unlink()
    (image.root / "etc" / "passwd").mkdir()
    server = image.start()
    assert server.ssh("id -u; pwd").stdout == b"1000\n/home/dev\n"
    assert "setup.step_skipped step=account" in server.log.read_text()


def test_root_that_may_not_become_somebody_else_says_what_it_lacks(image: Builder) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("NOT TESTED: setpriv is not installed")
    limited = ["setpriv", "--bounding-set=-setuid", "/gpudev/bin/gpudev-devserver", "serve"]
    done = subprocess.run(
        [*CONTAINED, str(image.root), *limited], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert "it needs SETUID and SETGID" in done.stderr


def test_somebody_ordinary_without_a_home_of_that_name_uses_their_own(build: Build) -> None:
    builder = build(ORDINARY)
    given, builder.home = builder.home, builder.top / "nowhere"
    server = builder.start(environment={"HOME": str(given)})
    own = pwd.getpwuid(NOBODY if IS_ROOT else os.getuid()).pw_dir
    assert server.ssh("pwd").stdout.decode().strip() in (str(given), own, "/")
    assert "no account is created" in server.log.read_text()


def test_the_members_of_a_gang_reach_each_other_by_name(image: Builder) -> None:
    mesh = asyncssh.generate_private_key("ssh-ed25519")
    image.write("mesh_key", mesh.export_private_key().decode())
    image.write("environment", "GPU_DEV_HOSTS=gpu-dev-1.gang,gpu-dev-1-1.gang,$(evil) x\nRANK=0\n")
    image.write("hosts", "127.0.0.1\tgpu-dev-1.gang\tgpu-dev-1\n")
    server = image.start()
    (image.home / "marker").write_text("reached\n")
    eventually(lambda: "gpu-dev-1.gang" in (image.root / "etc" / "hosts").read_text())
    assert server.ssh("ssh -o BatchMode=yes gpu-dev-1 cat marker").stdout == b"reached\n"
    assert server.ssh("ssh -o BatchMode=yes gpu-dev-1.gang cat marker").stdout == b"reached\n"
    assert "evil" not in (image.home / ".ssh" / "gpu-dev" / "config").read_text()
    key = image.home / ".ssh" / "gpu-dev" / "mesh_key"
    assert (stat.S_IMODE(key.stat().st_mode), key.stat().st_uid) == (0o600, DEV)


def test_hosts_that_become_known_later_are_added_and_ours_are_replaced(image: Builder) -> None:
    image.write("hosts", "10.0.0.1\tfirst\n")
    hosts = image.root / "etc" / "hosts"
    image.start()
    eventually(lambda: "10.0.0.1\tfirst\n" in hosts.read_text())
    (image.config / "hosts").unlink()
    image.write("hosts", "10.0.0.1\tfirst\n10.0.0.2\tsecond\n")
    eventually(lambda: "10.0.0.2\tsecond\n" in hosts.read_text())
    assert hosts.read_text().startswith("127.0.0.1\tlocalhost\n")
    assert hosts.read_text().count("first") == 1


def test_the_mesh_does_not_disturb_the_persons_own_ssh_configuration(image: Builder) -> None:
    image.write("mesh_key", asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode())
    image.write("environment", "GPU_DEV_HOSTS=a.gang,b.gang\n")
    (image.home / ".ssh").mkdir(parents=True)
    (image.home / ".ssh" / "config").write_text("Host mine\n  Port 2022\n")
    os.chown(image.home / ".ssh" / "config", DEV, DEV)
    os.chown(image.home / ".ssh", DEV, DEV)
    server = image.start()
    told = server.ssh("ssh -G mine | grep ^port; ssh -G b | grep -E '^(hostname|port|hostkeyalias)'").stdout.decode()
    assert told.split("\n")[:-1] == ["port 2022", "hostname b.gang", f"port {server.port}", "hostkeyalias gpu-dev-gang"]
    server.stop()
    image.start()
    assert (image.home / ".ssh" / "config").read_text().count("Include") == 1


def test_a_link_in_the_home_does_not_lead_root_astray(image: Builder) -> None:
    """A disk comes from another reservation: whatever lies on it, nothing outside is written or given away."""
    image.write("mesh_key", asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode())
    image.write("environment", "GPU_DEV_HOSTS=a.gang\n")
    image.home.mkdir(parents=True)
    (image.home / ".ssh").symlink_to("/root")
    server = image.start()
    assert list((image.root / "root").iterdir()) == []
    assert (image.root / "root").stat().st_uid == 0
    assert "prepare home" in server.log.read_text()
    assert server.ssh("true").returncode == 0


def test_installing_replaces_the_program_whole_and_leaves_nothing_else(program: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "bin"
    for _ in range(2):
        done = subprocess.run([program, "install", "--to", target], capture_output=True, text=True, check=True)
        assert done.stdout == f"{target}/gpudev-devserver\n"
    assert [path.name for path in target.iterdir()] == ["gpudev-devserver"]
    assert (target / "gpudev-devserver").read_bytes() == program.read_bytes()
    assert stat.S_IMODE((target / "gpudev-devserver").stat().st_mode) == 0o755


def test_the_program_is_static_and_small(program: Path) -> None:
    assert program.stat().st_size < 8_000_000
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    assert "not a dynamic executable" in told.stdout + told.stderr
