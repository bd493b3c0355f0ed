"""The processor: the planning loop and the workers that carry out its decisions."""
