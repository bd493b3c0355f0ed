"""Applies and removes the firewall rules, with `nft` or else `iptables`. It blocks: call it in a thread."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpudev.adapters.local.network.rules import (
    FirewallPlan,
    iptables_jumps,
    iptables_permits,
    iptables_relay_permits,
    iptables_rules,
    nft_rules,
)

_TIMEOUT_S = 20.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where these programs often are, although the search path leaves it out."""
_Rule = tuple[str, str, tuple[str, ...]]


class FirewallError(OSError):
    """The rules cannot be applied. `strerror` says why."""


class NftFirewall:
    name = "nft"

    def __init__(self, program: str, iptables: str | None) -> None:
        self._program = program
        self._iptables = iptables

    def apply(self, plan: FirewallPlan) -> None:
        _apply_with_limit(plan, lambda chosen: _run([self._program, "-f", "-"], nft_rules(chosen)))
        if self._iptables is not None:
            _ensure_rules(self._iptables, self._needed_permits(plan))

    def is_applied(self, plan: FirewallPlan) -> bool:
        iptables = self._iptables
        return self._has_table(plan) and (
            iptables is None or all(_has_rule(iptables, rule) for rule in self._needed_permits(plan))
        )

    def permit_forwarding(self, plan: FirewallPlan) -> bool:
        """Have iptables let through what our own rules accept. False: iptables is not installed."""
        if self._iptables is None:
            return False
        _ensure_rules(self._iptables, iptables_permits(plan))
        return True

    def remove(self, plan: FirewallPlan) -> None:
        if self._has_table(plan):
            _run([self._program, "delete", "table", "inet", plan.table])
        if self._iptables is not None:
            _remove_rules(self._iptables, (*iptables_permits(plan), *iptables_relay_permits(plan)))

    def _has_table(self, plan: FirewallPlan) -> bool:
        return _succeeds([self._program, "-t", "list", "table", "inet", plan.table])

    def _needed_permits(self, plan: FirewallPlan) -> tuple[_Rule, ...]:
        """None where iptables is installed, but does not work."""
        if self._iptables is None:
            return ()
        listing = _call([self._iptables, "-w", "-S", "FORWARD"], None)
        # As Docker sets it, also when it is installed later.
        forwarding = iptables_permits(plan) if "-P FORWARD DROP" in listing.stdout else ()
        relay = iptables_relay_permits(plan) if plan.has_relay and listing.returncode == 0 else ()
        return (*forwarding, *relay)


class IptablesFirewall:
    name = "iptables"

    def __init__(self, program: str, restore: str) -> None:
        self._program = program
        self._restore = restore

    def apply(self, plan: FirewallPlan) -> None:
        _apply_with_limit(plan, lambda chosen: _run([self._restore, "-w", "--noflush"], iptables_rules(chosen)))
        _ensure_rules(self._program, iptables_jumps(plan))

    def is_applied(self, plan: FirewallPlan) -> bool:
        return all(_has_rule(self._program, rule) for rule in iptables_jumps(plan))

    def permit_forwarding(self, plan: FirewallPlan) -> bool:
        return False  # its rules stand before everybody else's in the same chain

    def remove(self, plan: FirewallPlan) -> None:
        jumps = iptables_jumps(plan)
        _remove_rules(self._program, jumps)
        for table, _, rule in jumps:
            for action in ("-F", "-X"):
                _succeeds([self._program, "-w", "-t", table, action, rule[-1]])


Firewall = NftFirewall | IptablesFirewall


def find_firewall() -> Firewall | None:
    """None: this machine has neither program."""
    return next(iter(installed_firewalls()), None)


def installed_firewalls() -> list[Firewall]:
    """The preferred one first. All of them remove rules, whichever applied them."""
    nft, iptables, restore = (_find_program(name) for name in ("nft", "iptables", "iptables-restore"))
    found: list[Firewall] = [NftFirewall(nft, iptables)] if nft is not None else []
    return [*found, IptablesFirewall(iptables, restore)] if iptables and restore else found


def _apply_with_limit(plan: FirewallPlan, apply: Callable[[FirewallPlan], None]) -> None:
    """Without the limit of connections where the kernel has no module for it."""
    try:
        apply(plan)
    except FirewallError:
        apply(replace(plan, max_connections=None))


def _find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


def _ensure_rules(program: str, rules: Iterable[_Rule]) -> None:
    for rule in rules:
        if not _has_rule(program, rule):
            table, chain, words = rule
            _run([program, "-w", "-t", table, "-I", chain, "1", *words])


def _remove_rules(program: str, rules: Iterable[_Rule]) -> None:
    for rule in rules:
        table, chain, words = rule
        while _has_rule(program, rule) and _succeeds([program, "-w", "-t", table, "-D", chain, *words]):
            pass


def _has_rule(program: str, rule: _Rule) -> bool:
    table, chain, words = rule
    return _succeeds([program, "-w", "-t", table, "-C", chain, *words])


def _succeeds(command: list[str]) -> bool:
    return _call(command, None).returncode == 0


def _run(command: list[str], text: str | None = None) -> None:
    done = _call(command, text)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FirewallError(0, f"{os.path.basename(command[0])}: {lines[0]}")  # noqa: PTH119 - a program, not a file


def _call(command: list[str], text: str | None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, input=text or "", capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FirewallError(0, f"cannot run {command[0]}: {error}") from error
