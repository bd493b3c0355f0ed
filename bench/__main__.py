"""`python -m bench [NAME …]`: runs the named benchmarks (all by default). Fails only if one cannot run."""

import importlib
import sys

NAMES = ("cli", "start", "api", "planner", "scheduling", "kubernetes", "reconcile", "disks", "auth", "proxy")


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)} (expected {', '.join(NAMES)})", file=sys.stderr)
        return 2
    for name in chosen or NAMES:
        importlib.import_module(f"bench.{name}").run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
