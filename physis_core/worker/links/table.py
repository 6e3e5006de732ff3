"""The links of one worker, under the numbers that its pipeline knows them by."""

from __future__ import annotations

from collections.abc import Collection

from physis_core.pipeline.pipeline import Credit, Pipeline
from physis_core.pipeline.stages import InFlight
from physis_core.worker.links.link import LinkReceiver, LinkSender

Edge = tuple[int, int]


class LinkTable:
    """Owned by the worker's loop. `senders` and `receivers` hold the newest link of each edge;
    links that it replaced stay under their number for the streams that were opened over them.
    """

    def __init__(self, pipeline: Pipeline, devices: Collection[int]) -> None:
        self.senders: dict[Edge, LinkSender] = {}
        self.receivers: dict[Edge, LinkReceiver] = {}
        self.numbers: dict[Edge, int] = {}
        self._pipeline = pipeline
        self._devices = devices
        self._sender_of: dict[int, LinkSender] = {}
        self._receiver_of: dict[int, LinkReceiver] = {}
        self._generation: dict[Edge, int] = {}
        """The least that a link must have to be taken."""

    def put(self, edge: Edge, end: LinkSender | LinkReceiver, generation: int) -> bool:
        """Take a link that was made. False where a newer one is there already: it is closed."""
        if generation < self._generation.get(edge, 0):
            end.close()
            return False
        self._generation[edge] = generation + 1
        number = self.numbers[edge] = self._pipeline.add_link(*edge)
        if edge[0] in self._devices:
            self.senders[edge] = self._sender_of[number] = end  # type: ignore[assignment]
        else:
            self.receivers[edge] = self._receiver_of[number] = end  # type: ignore[assignment]
        return True

    def send(self, task: InFlight, link: int) -> None:
        self._sender_of[link].send(task, task.stage)

    def give(self, credit: Credit) -> None:
        """Goes out with `flush`."""
        self._receiver_of[credit.link].give_credit(credit.stream, credit.epoch, credit.stage)

    def flush(self) -> None:
        for receiver in self.receivers.values():
            receiver.flush()

    def close(self) -> None:
        """Tell the peers that nothing more comes."""
        for sender in self.senders.values():
            sender.close()
        for receiver in self.receivers.values():
            receiver.close()
