"""Who may use the system: users, invitations, login proofs and public SSH keys."""
