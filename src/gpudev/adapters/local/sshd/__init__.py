"""The SSH server inside a dev server, for people's `ssh`, `scp`, `rsync` and editors.

It knows one user, one home and the keys that may log in. It knows nothing of reservations, namespaces or the control
plane: its parent process has isolated it already, and the control plane reaches it through files (keys, messages and
Jupyter's spec).

`sshd_config` and `terminal_messages` are cheap to import, for the control plane. `server` imports asyncssh.
"""
