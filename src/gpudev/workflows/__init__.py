"""Use cases: gather facts, ask a decision of planning, write what it says."""
