"""The OpenMetrics endpoint of a node, on loopback: http://127.0.0.1:PORT/metrics.

Threads: the node hands over plain samples once a second; the endpoint's own threads render the
newest ones. Neither waits for the other, so a slow reader delays no loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Thread
from typing import Any

from physis_core.observe.histogram import HistogramCounts
from physis_core.types import UserError
from physis_ros.node.metric_names import FAMILIES, Family, Sample
from physis_ros.node.packages import missing_package

LOOPBACK = "127.0.0.1"


class MetricsEndpoint:
    """Serves from construction to `close`.

    Raises:
        UserError: prometheus-client is not installed, or the port is not free.
    """

    def __init__(self, port: int) -> None:
        try:
            import prometheus_client as prometheus
            from prometheus_client import metrics_core
        except ModuleNotFoundError as error:
            raise UserError("metrics_port", port, str(missing_package(error))) from error
        self._families: Any = metrics_core
        self._samples: tuple[Sample, ...] = ()
        registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        registry.register(self)
        self._server: Any
        self._thread: Thread
        try:
            self._server, self._thread = prometheus.start_http_server(
                port, addr=LOOPBACK, registry=registry
            )
        except OSError as error:
            raise UserError("metrics_port", port, f"cannot listen: {error.strerror}") from error

    def publish(self, samples: Iterable[Sample]) -> None:
        self._samples = tuple(samples)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> list[Any]:
        """What the registry asks for in the endpoint's threads."""
        by_family: dict[str, list[Sample]] = {}
        for sample in self._samples:
            by_family.setdefault(sample.family, []).append(sample)
        return [self._metric(FAMILIES[name], samples) for name, samples in by_family.items()]

    def _metric(self, family: Family, samples: Sequence[Sample]) -> Any:
        kind = f"{family.kind.capitalize()}MetricFamily"
        metric = getattr(self._families, kind)(
            family.name, family.help, labels=family.labels, unit=family.unit
        )
        for sample in samples:
            labels = [sample.labels[name] for name in family.labels]
            if isinstance(sample.value, HistogramCounts):
                buckets = cumulative(sample.value)
                metric.add_metric(labels, buckets=buckets, sum_value=sample.value.total)
            else:
                metric.add_metric(labels, sample.value)
        return metric


def cumulative(histogram: HistogramCounts) -> list[tuple[str, int]]:
    """Upper bounds as text, with the samples up to each; the last is +Inf."""
    found, below = [], 0
    for upper, count in zip((*histogram.upper, float("inf")), histogram.counts):
        below += count
        found.append(("+Inf" if upper == float("inf") else f"{upper:g}", below))
    return found
