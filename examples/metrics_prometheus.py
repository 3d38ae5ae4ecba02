"""Exports how a loader does to Prometheus, batch by batch, for as long as the training runs.

    pip install prometheus-client
    python examples/metrics_prometheus.py images.lmdb [--port 8000] [--epochs 3]
    curl -s http://127.0.0.1:8000/metrics | grep ^packer_

Where ``rate(packer_wait_seconds_sum[1m])`` comes near to 1, the training does nothing but wait for batches.
"""

from __future__ import annotations

import argparse

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, start_http_server

from packer import BatchMetrics, make_loader, open_dataset

SAMPLES = Counter("packer_samples", "Samples given out")
SKIPPED = Counter("packer_skipped", "Samples left out since they could not be had")
WAIT = Histogram("packer_wait_seconds", "That the training has waited for a batch")
DECODE = Histogram("packer_decode_seconds", "That reading and decoding a batch took")
MEMORY = Gauge("packer_worker_memory_bytes", "Anonymous memory of a worker", ["worker"])


def export(metrics: BatchMetrics) -> None:
    """Take over the numbers of a batch."""
    SAMPLES.inc(metrics.samples)
    SKIPPED.inc(max(0, metrics.skipped - (REGISTRY.get_sample_value("packer_skipped_total") or 0)))
    WAIT.observe(metrics.wait_s)
    DECODE.observe(metrics.decode_s)
    MEMORY.labels(metrics.worker).set(metrics.memory_bytes)


def main() -> None:
    """Train on a packed dataset, or do as if."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    start_http_server(options.port, addr="127.0.0.1")
    loader = make_loader(open_dataset(options.dataset, output="torch"), 4, shuffle=True, on_error="skip", on_batch=export)
    for epoch in range(options.epochs):
        loader.set_epoch(epoch)
        for _ in loader:
            pass  # here goes a step of the training
    names = ("packer_samples_total", "packer_skipped_total", "packer_wait_seconds_sum")
    print(*(f"{name}={REGISTRY.get_sample_value(name)}" for name in names), flush=True)
    input()  # the numbers can be had until Enter is pressed


if __name__ == "__main__":
    main()
