"""What operators' eyes see: every metric of every service has its one home here, by Prometheus' conventions.

Nothing here decides anything, and nothing that decides knows of it: faces and adapters note what happened, and whoever
serves /metrics gathers it. Labels are few and bounded: types, kinds and states, never people or ids.
"""
