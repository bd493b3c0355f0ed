"""What the core needs from outside, as Protocols. Adapters implement them; `bootstrap` wires them up."""
