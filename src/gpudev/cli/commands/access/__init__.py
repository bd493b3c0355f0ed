"""Login and logout: the commands and the login methods."""
