"""An estimate as text."""

from cl2r.study.cost import Estimate


def describe(estimate: Estimate, trials: int, links_total: int, links_present: int, source: str = "") -> str:
    """The estimate as aligned lines. `source` says where the speeds come from, see `speed_source`."""
    lines = {
        "runs": f"{trials:,}",
        "links": f"{estimate.links:,} to train, {links_present:,} of {links_total:,} present",
        "images": f"{estimate.images:,} to train on, {estimate.extracted:,} to extract",
        "this machine": _here(estimate, source),
        estimate.gpu.name: _gpu(estimate),
        "disk": _size(estimate.disk_bytes),
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole or not seconds else "under 1 s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{seconds / 3600:,.1f} h"


def _size(count: int) -> str:
    value, units = float(count), iter(("bytes", "kB", "MB", "GB"))
    unit = next(units)
    while value >= 999.5 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:,.1f} {unit}" if unit != "bytes" and value < 9.95 else f"{value:,.0f} {unit}"


def _shared(estimate: Estimate, efficiency: float) -> str:
    """How runs lie side by side; a single worker a run is not worth a word."""
    workers = estimate.team.workers
    shared = f", each by {workers} workers at {100 * efficiency:.0f} % efficiency" if workers > 1 else ""
    return f"{estimate.concurrency} at a time{shared}"


def _here(estimate: Estimate, source: str) -> str:
    words = _shared(estimate, estimate.efficiency)
    if estimate.team.workers > 1:
        words += f", gradients by all-reduce with {estimate.team.ring.described()}"
    return f"{_duration(estimate.seconds_here)} ({words}{f'; speed {source}' if source else ''})"


def _gpu(estimate: Estimate) -> str:
    """GPU-hours and price; of several workers a run also how long it takes, and what is left of their speed."""
    gpu, workers = estimate.gpu, estimate.team.workers
    assumed = f"an assumption, not measured: {gpu.assumed(workers)}, ${gpu.dollars_per_hour:.2f} an hour"
    if workers == 1:
        return f"{_gpu_hours(estimate)} ({assumed})"
    shared = _shared(estimate, estimate.gpu_efficiency)
    return f"{_gpu_hours(estimate)}, {_duration(estimate.gpu_seconds)} ({shared}; {assumed})"


def _gpu_hours(estimate: Estimate) -> str:
    if 0 < estimate.gpu_hours < 0.01:
        price = max(estimate.gpu_price, 0.01)
        return f"under 0.01 GPU-hours, {'about' if estimate.gpu_price >= 0.01 else 'under'} ${price:.2f}"
    return f"{estimate.gpu_hours:,.2f} GPU-hours, about ${estimate.gpu_price:,.2f}"
