"""Reads `action_chunk` with Eclipse Cyclone DDS and no ROS: for hosts that only consume chunks.

    pip install cyclonedds
    ROS_DOMAIN_ID=0 python docs/examples/cyclone_action_chunk.py [--namespace robot] [--count 10]

ROS 2 puts `rt/` before a topic's name and names types `package::msg::dds_::Type_`. Fields follow
`msg/ActionChunk.msg` in its order. Only loopback is used, unless CYCLONEDDS_URI says otherwise.
Keep `IgnoreTypeInformation` 1.15 (vendor Fast DDS) in one of your own: the type object that Fast
DDS sends for a sequence of strings is not valid to Cyclone, and no data would come.
"""

import argparse
import os
import sys
from dataclasses import dataclass

LOOPBACK = """<CycloneDDS><Domain id="any">
  <General>
    <Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces>
    <AllowMulticast>false</AllowMulticast>
  </General>
  <Compatibility><IgnoreTypeInformation>1.15</IgnoreTypeInformation></Compatibility>
  <Discovery>
    <ParticipantIndex>auto</ParticipantIndex>
    <MaxAutoParticipantIndex>60</MaxAutoParticipantIndex>
    <Peers><Peer address="127.0.0.1"/></Peers>
  </Discovery>
</Domain></CycloneDDS>"""

# No `from __future__ import annotations` here: the IDL classes look at their annotations.
# Cyclone reads it when its library is loaded.
os.environ.setdefault("CYCLONEDDS_URI", LOOPBACK)

from cyclonedds.core import Policy, Qos  # noqa: E402
from cyclonedds.domain import DomainParticipant  # noqa: E402
from cyclonedds.idl import IdlStruct  # noqa: E402
from cyclonedds.idl.types import float64, int32, sequence, uint32, uint64  # noqa: E402
from cyclonedds.sub import DataReader  # noqa: E402
from cyclonedds.topic import Topic  # noqa: E402
from cyclonedds.util import duration  # noqa: E402


@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: int32
    nanosec: uint32

    @property
    def ns(self) -> int:
        return int(self.sec) * 1_000_000_000 + int(self.nanosec)


@dataclass
class Duration(IdlStruct, typename="builtin_interfaces::msg::dds_::Duration_"):
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: Time
    frame_id: str


@dataclass
class ActionChunk(IdlStruct, typename="physis_ros::msg::dds_::ActionChunk_"):
    header: Header
    stream_id: str
    epoch: uint32
    chunk_id: uint64
    capture_oldest: Time
    capture_newest: Time
    receipt: Time
    entry: Time
    deadline: Time
    missed: bool
    clock_suspect: bool
    start: Time
    step: Duration
    joint_names: sequence[str]
    positions: sequence[float64]
    velocities: sequence[float64]


def main() -> int:
    parser = argparse.ArgumentParser(description="print action chunks read with Cyclone DDS")
    parser.add_argument("--namespace", default="", help="namespace of the robot")
    parser.add_argument("--count", type=int, default=0, help="stop after so many (0: never)")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="longest wait for one")
    arguments = parser.parse_args()
    domain = DomainParticipant(int(os.environ.get("ROS_DOMAIN_ID", "0")))
    name = "/".join(filter(None, ["rt", arguments.namespace.strip("/"), "action_chunk"]))
    qos = Qos(
        Policy.Reliability.Reliable(duration(seconds=1)),
        Policy.Durability.Volatile,
        Policy.History.KeepLast(8),
    )
    reader = DataReader(domain, Topic(domain, name, ActionChunk), qos=qos)
    seen = 0
    while not arguments.count or seen < arguments.count:
        chunk = reader.take_next()
        if chunk is None:
            # Ends with StopIteration of `take_iter` when nothing comes in time.
            chunk = next(reader.take_iter(timeout=duration(seconds=arguments.timeout_s)), None)
        if chunk is None:
            print(f"no chunk on {name} for {arguments.timeout_s:g} s", file=sys.stderr)
            return 1
        joints = len(chunk.joint_names)
        age_ms = (chunk.header.stamp.ns - chunk.capture_oldest.ns) / 1e6
        first = ", ".join(f"{p:+.3f}" for p in chunk.positions[:joints])
        print(
            f"{chunk.stream_id} epoch {chunk.epoch} chunk {chunk.chunk_id}: "
            f"{len(chunk.positions) // max(joints, 1)} steps, "
            f"{age_ms:.1f} ms from capture to exit, first [{first}] rad",
            flush=True,
        )
        seen += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
