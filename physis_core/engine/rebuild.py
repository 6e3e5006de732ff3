"""Lost KV made anew from what came out: the last clean latents, noised to each step's level and run
through all stages.

Nothing is copied while all goes well but the chunks that leave anyway. After a loss the kept chunks
enter the pipeline once more, as chunks of the past with ids below 0: they walk every stage, one
behind the other like all chunks, except that each denoising step begins with the kept latent noised
to that step's level (`StagedModel.renoise`) instead of with what the step before predicted. Each
stage so writes the KV that the next chunks read; what comes out at the end is thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from physis_core.types import Array

Latent = Mapping[str, Array]
"""Parts of one clean latent by their numbers, [1, ...]."""


class PastChunks:
    """Clean latents of one stream: of its first `sink` chunks, and of the last window - sink.

    Those are the chunks that a full KV window holds, H in all.
    """

    def __init__(self, window: int, sink: int) -> None:
        self._sink = sink
        self._first: list[Latent] = []
        self._last: deque[Latent] = deque(maxlen=window - sink)

    def add(self, latent: Latent) -> None:
        if len(self._first) < self._sink:
            self._first.append(latent)
        else:
            self._last.append(latent)

    def kept(self) -> list[Latent]:
        """Oldest first."""
        return [*self._first, *self._last]

    def forget(self) -> None:
        """The stream begins anew: nothing of before may come back."""
        self._first.clear()
        self._last.clear()
