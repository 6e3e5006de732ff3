"""Which Fast DDS profile is used, and what becomes of the shared memory of killed processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from physis_ros.stack import transport
from physis_ros.stack.transport import PROFILE_VARIABLES, remove_abandoned, with_transport

ROOT = Path(__file__).parents[4]
LOOPBACK = str(ROOT / "config" / "fastdds" / "loopback.xml")
SUBNET = str(ROOT / "config" / "fastdds" / "subnet.xml")
RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
MODERN, OLD = PROFILE_VARIABLES


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)
    )


def test_localhost_stays_and_gets_the_profile_for_this_machine_alone() -> None:
    given = {RANGE: "LOCALHOST", "HOME": "/x"}
    assert with_transport(given, ROOT) == {**given, MODERN: LOOPBACK}


@pytest.mark.parametrize("given", [{}, {RANGE: ""}, {RANGE: "SUBNET"}])
def test_a_network_keeps_its_range(given: dict[str, str]) -> None:
    made = with_transport(given, ROOT)
    assert made == {**given, MODERN: SUBNET}


def test_a_distribution_with_fast_dds_2_gets_its_older_variable() -> None:
    given = {"ROS_DISTRO": "jazzy"}
    assert with_transport(given, ROOT) == {**given, OLD: SUBNET}


@pytest.mark.parametrize(
    "given",
    [
        {MODERN: "/mine.xml", RANGE: "LOCALHOST"},
        {OLD: "/mine.xml"},
        {"FASTDDS_BUILTIN_TRANSPORTS": "UDPv4"},
        {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"},
        {RANGE: "OFF"},
        {RANGE: "SYSTEM_DEFAULT"},
        {RANGE: "LOCALHOST", "ROS_STATIC_PEERS": "10.0.0.7"},
    ],
)
def test_what_the_user_chose_stays(given: dict[str, str]) -> None:
    assert with_transport(given, ROOT) == given


def test_it_may_be_applied_again_and_follows_a_range_that_was_set_since() -> None:
    once = with_transport({RANGE: "LOCALHOST"}, ROOT)
    assert with_transport(once, ROOT) == once
    network = with_transport({}, ROOT)
    assert with_transport({**network, RANGE: "LOCALHOST"}, ROOT) == once


def test_without_room_in_shared_memory_the_middleware_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {RANGE: "LOCALHOST"}
    assert with_transport(given, ROOT, shm=tmp_path / "none") == given
    small = shutil._ntuple_diskusage(1 << 26, 0, 1 << 26)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: small)
    assert with_transport(given, ROOT) == given


@pytest.mark.parametrize("path", [LOOPBACK, SUBNET])
def test_profiles_give_the_segment_that_the_checks_reckon_with(path: str) -> None:
    tree = ElementTree.parse(path)
    sizes = [e.text for e in tree.iter() if e.tag.endswith("segment_size")]
    assert sizes == [str(transport.SEGMENT_BYTES)]


def test_the_loopback_profile_names_no_other_address() -> None:
    addresses = [e.text for e in ElementTree.parse(LOOPBACK).iter() if e.tag.endswith("address")]
    assert addresses
    assert set(addresses) == {"127.0.0.1"}


def test_only_segments_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    def make(name: str, *, age_s: float = 60.0) -> Path:
        segment, lock = tmp_path / name, tmp_path / f"{name}_el"
        segment.write_bytes(b"x" * 100)
        lock.touch()
        when_s = lock.stat().st_mtime - age_s
        os.utime(lock, (when_s, when_s))
        return segment

    dead = make("fastdds_0123456789abcdef")
    alive = make("fastdds_1123456789abcdef")
    young = make("fastdds_2123456789abcdef", age_s=0.0)
    port = make("fastdds_port7000")
    with alive.with_name(alive.name + "_el").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert remove_abandoned(tmp_path) == 100
    assert not dead.exists()
    assert not dead.with_name(dead.name + "_el").exists()
    assert alive.exists() and young.exists() and port.exists()
    assert remove_abandoned(tmp_path / "none") == 0
