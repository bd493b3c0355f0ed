"""Commands that create, show and end reservations."""
