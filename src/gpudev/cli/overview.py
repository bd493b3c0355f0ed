"""All commands with their modules and summaries, and the overview page.

It imports nothing, so that the overview page is shown without loading the argument parser.
"""

SECTIONS: dict[str, dict[str, str]] = {
    "Reservations": {
        "reserve": "Reserve GPUs and wait until the dev server is ready",
        "run": "Reserve GPUs, run a command on a copy of your folder, release",
        "list": "Show your reservations",
        "status": "Show one reservation in full",
        "logs": "Show the history of a reservation, and follow it",
        "extend": "Extend an active reservation",
        "cancel": "Cancel reservations",
        "avail": "Show free GPUs, and the expected wait for the others",
    },
    "On a dev server": {
        "connect": "Open a shell on a dev server, or run a command there",
        "exec": "Run a command on a dev server, for scripts",
        "cp": "Copy files to or from a dev server",
        "port-forward": "Forward ports of a dev server to this machine",
        "jupyter": "Run Jupyter Lab on a dev server and open it here",
        "users": "Manage collaborators of a dev server",
        "ssh-config": "Configure host names of your dev servers for ssh and editors",
    },
    "Disks": {
        "disk": "Manage disks: create, show, snapshot, clone, delete, restore",
    },
    "Account and settings": {
        "login": "Log in and store an API key",
        "logout": "Revoke the stored API key and delete it",
        "whoami": "Show who you are logged in as",
        "token": "Print your API key, for other programs",
        "config": "Get, set and show settings",
        "completion": "Print the completion script for a shell",
    },
    "For operators": {
        "priority": "Set the priority of a queued reservation",
    },
    "For programs": {
        "proxy-command": "Tunnel ssh through HTTPS, as ssh's ProxyCommand",
    },
    "One machine": {
        "up": "Start the whole system on this machine",
        "down": "Stop it",
    },
}
SUMMARIES: dict[str, str] = {name: text for section in SECTIONS.values() for name, text in section.items()}
LOCATIONS: dict[str, str] = {
    "reserve": "gpudev.cli.commands.reservations.reserve:reserve",
    "run": "gpudev.cli.commands.reservations.run:run",
    "list": "gpudev.cli.commands.reservations.list:list_jobs",
    "status": "gpudev.cli.commands.reservations.status:status",
    "logs": "gpudev.cli.commands.reservations.logs:logs",
    "extend": "gpudev.cli.commands.reservations.changes:extend",
    "cancel": "gpudev.cli.commands.reservations.changes:cancel",
    "avail": "gpudev.cli.commands.cluster.avail:avail",
    "connect": "gpudev.cli.commands.sessions.connect:connect",
    "exec": "gpudev.cli.commands.sessions.connect:execute",
    "cp": "gpudev.cli.commands.sessions.connect:copy",
    "port-forward": "gpudev.cli.commands.sessions.connect:port_forward",
    "jupyter": "gpudev.cli.commands.sessions.jupyter:jupyter",
    "users": "gpudev.cli.commands.sessions.users:users",
    "ssh-config": "gpudev.cli.commands.sessions.ssh_config:configure",
    "disk": "gpudev.cli.commands.disks.disk:disk",
    "login": "gpudev.cli.commands.access.login:login",
    "logout": "gpudev.cli.commands.access.login:logout",
    "whoami": "gpudev.cli.commands.access.login:whoami",
    "token": "gpudev.cli.commands.access.login:token",
    "config": "gpudev.cli.config:config",
    "completion": "gpudev.cli.shell_completion:completion",
    "priority": "gpudev.cli.commands.reservations.changes:priority",
    "proxy-command": "gpudev.cli.commands.sessions.connect:proxy_command",
    "up": "gpudev.cli.local_system:up",
    "down": "gpudev.cli.local_system:down",
}
ALIASES: dict[str, str] = {"ls": "list", "ps": "list", "ssh": "connect", "rm": "cancel"}
"""Names that other programs have for the same."""


def help_page() -> str:
    lines = [
        "Usage: gpu-dev COMMAND [OPTIONS]",
        "",
        "  Reserve GPUs, get a shell, keep your files on a disk.",
        "  Get started:  gpu-dev reserve --gpus 2 --hours 4",
    ]
    for title, commands in SECTIONS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<14}{text}" for name, text in commands.items()]
    lines += [
        "",
        "Options:",
        "  --version     Show the version",
        "  --help        Show this page; after a command, its help",
        "",
        "Also: ls and ps for list, ssh for connect, rm for cancel, help COMMAND.",
        "",
    ]
    return "\n".join(lines)
