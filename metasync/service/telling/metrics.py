"""The daemon's figures for Prometheus, at the address that `daemon.metrics` names: this machine alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from metasync.errors import WorkspaceError
from metasync.local.settings import Settings
from metasync.reports.service import DaemonState, WorkspaceState
from metasync.runtime.daemon_keys import METRICS, metrics_address
from metasync.service.supervisor import Keeping

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Figures:
    """What is counted, as `prometheus_client` collects it. `state` gives the daemon's."""

    def __init__(self, state: Callable[[], DaemonState]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state = self._state()
        began = GaugeMetricFamily("metasync_daemon_start_time_seconds", "When the daemon was started, since 1970")
        began.add_metric([], state.began_s)
        yield began
        for name, text, of in _OF_WORKSPACE:
            family = GaugeMetricFamily(name, text, labels=["workspace"])
            for w in state.workspaces:
                if (value := of(w)) is not None:
                    family.add_metric([w.directory], value)
            yield family
        problems = GaugeMetricFamily("metasync_problems", "Problems, by kind", labels=["workspace", "kind"])
        for w in state.workspaces:
            for kind in sorted({p.kind for p in w.problems}):
                problems.add_metric([w.directory, kind], sum(p.kind == kind for p in w.problems))
        yield problems
        for name, text, counted in _OF_LINE:
            counter = CounterMetricFamily(name, text, labels=["workspace", "backend"])
            for w in state.workspaces:
                for line in w.lines:
                    counter.add_metric([w.directory, line.backend], counted(line))
            yield counter
        away = GaugeMetricFamily("metasync_backend_away", "1: the backend is away", labels=["workspace", "backend"])
        for w in state.workspaces:
            for line in w.lines:
                away.add_metric([w.directory, line.backend], bool(line.away))
        yield away


_OF_WORKSPACE: Final[tuple[tuple[str, str, Callable[[WorkspaceState], float | None]], ...]] = (
    ("metasync_in_step", "1: nothing is to be done", lambda w: w.doing == "in step"),
    ("metasync_stuck", "1: it does not get on without the user", lambda w: w.doing == "stuck"),
    ("metasync_version", "The agreed version that the folder is at", lambda w: w.version),
    ("metasync_changed", "Paths that changed and are not pushed yet", lambda w: w.changed),
    ("metasync_changed_bytes", "Their estimated size", lambda w: w.changed_bytes),
    ("metasync_pushed_time_seconds", "When something was last pushed, since 1970", lambda w: w.pushed_s),
    ("metasync_pulled_time_seconds", "When something was last pulled, since 1970", lambda w: w.pulled_s),
    ("metasync_looked_time_seconds", "When it was last asked for news, since 1970", lambda w: w.looked_s),
)
_OF_LINE: Final[tuple[tuple[str, str, Callable[[Any], float]], ...]] = (
    ("metasync_up_bytes", "Bytes sent to a backend since the daemon began", lambda line: line.up_bytes),
    ("metasync_down_bytes", "Bytes received from a backend since the daemon began", lambda line: line.down_bytes),
    ("metasync_requests", "Requests to a backend since the daemon began", lambda line: line.requests),
)


def _installed() -> Any:
    try:
        import prometheus_client
    except ImportError as e:
        raise WorkspaceError(
            "figures need the package prometheus-client", next_step="Run: pip install 'metasync[metrics]'"
        ) from e
    return prometheus_client


def text(state: Callable[[], DaemonState]) -> str:
    """All figures, in the text format. `WorkspaceError` if the package is not installed."""
    client = _installed()
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(Figures(state))
    return str(client.generate_latest(registry).decode("utf-8"))


class Pages:
    """The addresses where figures are to be had: one for each that a workspace's settings name. Thread-safe."""

    def __init__(self, state: Callable[[], DaemonState]) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], tuple[Any, set[object]]] = {}

    def open(self, text: str, who: object) -> None:
        """Serves at an address for as long as `who` wants it. `UsageError`; `WorkspaceError` if it cannot be had."""
        address = metrics_address(text)
        with self._lock:
            if address not in self._open:
                self._open[address] = (self._serve(address), set())
            self._open[address][1].add(who)

    def leave(self, who: object) -> None:
        with self._lock:
            for address, (server, wanted_by) in list(self._open.items()):
                wanted_by.discard(who)
                if not wanted_by:
                    del self._open[address]
                    server.shutdown()
                    server.server_close()

    def _serve(self, address: tuple[str, int]) -> Any:
        client = _installed()
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(Figures(self._state))
        try:
            server, _ = client.start_http_server(address[1], addr=address[0], registry=registry)
            server.set_app(_only_for(address, server.get_app()))
        except OSError as e:
            raise WorkspaceError(
                f"figures cannot be served at {address[0]}:{address[1]}: {e.strerror or e}",
                next_step=f"Choose another port: metasync config set {METRICS} {address[0]}:PORT",
            ) from e
        return server


def _only_for(address: tuple[str, int], app: Any) -> Any:
    """The WSGI application `app`, for requests to this very address or to `localhost`.

    A page in a browser may have its own name lead here (DNS rebinding), and would read names of folders and backends.
    """
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    allowed = {f"{name}:{address[1]}" for name in (host, "localhost")}

    def checked(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST") in allowed:
            answer: Iterable[bytes] = app(environ, start)
            return answer
        start("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"Ask for http://{host}:{address[1]}/metrics\n".encode()]

    return checked


class PagesBeside:
    """The page of one workspace's settings: goes along with its keeper."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def begin(self, keeper: Keeping, settings: Settings) -> None:
        if address := settings.values.get(METRICS):
            self._pages.open(address, self)

    def hear(self, state: WorkspaceState) -> None:
        """Figures are made when they are asked for."""

    def end(self) -> None:
        self._pages.leave(self)
