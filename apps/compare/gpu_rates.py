"""How fast a GPU does some work, by the method of annulus-bench attention --steps (docs/benchmarking.md)."""

import math
import statistics
import time


class Clock:
    """The stream of PyTorch's current GPU. Times are those between two events of it."""

    def __init__(self, torch):
        self.torch = torch

    def hold(self):
        """What is enqueued next starts some milliseconds later, so that the host is ahead of the GPU."""
        self.torch.cuda._sleep(4_000_000)  # cycles, of which a Hopper GPU does some 1.5 to 2 a nanosecond

    def seconds(self, work, calls):
        """Of all `calls` together."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    def wait(self):
        self.torch.cuda.synchronize()

    sleep = staticmethod(time.sleep)


def measure(clock, work, repetitions, pause, sustained):
    """Seconds of one call: `burst`, the median of `repetitions` single ones, each after `pause` seconds without work, and
    `sustained`, the mean of the calls that fill `sustained` seconds, behind `pause` seconds of the same work. A first call, which
    may compile, is not timed."""
    work()
    clock.wait()
    burst = []
    for _ in range(repetitions):
        clock.sleep(pause)
        clock.hold()
        burst.append(clock.seconds(work, 1))
    calls_in = lambda seconds: max(1, math.ceil(seconds / statistics.median(burst)))  # noqa: E731
    for _ in range(calls_in(pause)):
        work()
    calls = calls_in(sustained)
    return {"burst": statistics.median(burst), "burst_each": burst, "sustained": clock.seconds(work, calls) / calls, "calls": calls}
