"""The highest memory of a process of its own, for benchmarks that start one."""

PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
"""
"""Source of a function that a started process calls; Linux only.

`resource.getrusage` would not do: a started process inherits the highest memory of its parent.
"""
