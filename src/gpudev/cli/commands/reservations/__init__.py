"""Commands that make, show and end reservations."""
