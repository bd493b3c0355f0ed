"""Users, API keys, logins, invitations and the audit log, as rows."""
