"""A sweep: four settings in parallel, each on its own GPU."""

import asyncio

from gpudev import AsyncGpuDev

RATES = (0.1, 0.03, 0.01, 0.003)


async def train(client: AsyncGpuDev, rate: float) -> tuple[float, float]:
    async with client.reserve(gpus=1, hours=1, disk="none", name=f"rate-{rate}") as server:
        # Each task waits for its own GPU; the others keep running.
        done = await server.run(["awk", "BEGIN { print ARGV[1] * 2; exit }", str(rate)])
    return rate, float(done.stdout)


async def main() -> None:
    async with AsyncGpuDev() as client:
        results = await asyncio.gather(*(train(client, rate) for rate in RATES))
    best, loss = min(results, key=lambda result: result[1])
    print(f"best: {best} (loss {loss})")


if __name__ == "__main__":
    asyncio.run(main())
