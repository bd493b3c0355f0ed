"""A cluster on paper and in virtual time: traces of people who ask for GPUs, and policies that decide who gets them."""
