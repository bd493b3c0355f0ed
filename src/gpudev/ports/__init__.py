"""What the core needs from the outside, as Protocols. Adapters fulfil them; `bootstrap` wires them up."""
