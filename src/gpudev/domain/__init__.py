"""The system's values: no input, no output, no clock, standard library only."""
