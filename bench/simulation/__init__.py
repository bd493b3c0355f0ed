"""A simulated cluster in virtual time: traces of requests, and policies that decide which ones start."""
