"""The SSH server inside a dev server: what a person's `ssh`, `scp`, `rsync` and editor talk to.

It knows one user, one home and the owner's keys. It knows nothing of reservations, namespaces or the control plane:
whoever starts it has already put it into the right place, and speaks to it through two files (keys and messages).

`config` and `messages` are for the control plane and cost nothing to import; `server` (preload, run) brings asyncssh.
"""
