"""What the system is about, in values: no input, no output, no clock, standard library only."""
