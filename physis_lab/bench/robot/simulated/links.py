"""How late the messages of each path are, and which are lost or repeated, at random."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Random lateness of one message path. A share `slow` of the messages takes up to `worst_s`,
    the others up to `usual_s`; a share `lost` never comes, a share `twice` comes twice. With
    `ordered` no message overtakes another."""

    usual_s: float = 0.002
    worst_s: float = 0.002
    slow: float = 0.0
    lost: float = 0.0
    twice: float = 0.0
    ordered: bool = True

    def delay_s(self, random: np.random.Generator) -> float:
        most_s = self.worst_s if random.random() < self.slow else self.usual_s
        return float(random.uniform(0.0, most_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """`acknowledgements` counts from when the controller's side has the trajectory. `taking`: from
    then until the controller looks at it, at most `late_s` after the judgement."""

    chunks: Link = field(default_factory=Link)
    windows: Link = field(default_factory=Link)
    trajectories: Link = field(default_factory=Link)
    acknowledgements: Link = field(default_factory=Link)
    taking: Link = field(default_factory=Link)
    joints: Link = field(default_factory=Link)
    commanded: Link = field(default_factory=Link)
