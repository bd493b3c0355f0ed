"""One module per command: what it is called, what it takes, what it shows. No rules live here."""
