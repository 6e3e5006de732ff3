"""Matching by stamp: what counts, what is refused, and that nothing is ever made up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.observation.sync import (
    JointReading,
    Matched,
    ObservationSync,
    SyncConfig,
    Unmatched,
)

MS = 1_000_000
CONFIG = SyncConfig(
    cameras=("front", "wrist"),
    joints=("a", "b"),
    slop_s=0.02,
    max_age_s=0.3,
    future_s=0.05,
)


class Feed:
    """Two clocks that advance together, and sources that stamp what they send."""

    def __init__(self, config: SyncConfig = CONFIG) -> None:
        self.sync: ObservationSync[str] = ObservationSync(config)
        self.now_ms = 10_000

    def image(self, camera: str, stamp_ms: int, image: str = "") -> str | None:
        return self.sync.add_image(
            camera,
            image or f"{camera}@{stamp_ms}",
            stamp_ns=stamp_ms * MS,
            receipt_ns=self.now_ms * MS,
            receipt_s=self.now_ms / 1e3,
        )

    def joint(
        self, name: str, stamp_ms: int, position: float = 0.5, velocity: float | None = 0.1
    ) -> dict[str, str]:
        reading = JointReading(
            name=name, stamp_ns=stamp_ms * MS, position=position, velocity=velocity
        )
        return self.sync.add_joints(
            [reading], receipt_ns=self.now_ms * MS, receipt_s=self.now_ms / 1e3
        )

    def all(self, stamp_ms: int) -> None:
        for camera in CONFIG.cameras:
            self.image(camera, stamp_ms)
        for joint in CONFIG.joints:
            self.joint(joint, stamp_ms)

    def match(self) -> Matched[str] | Unmatched:
        return self.sync.match(self.now_ms / 1e3)

    def reasons(self) -> dict[str, str]:
        found = self.match()
        assert isinstance(found, Unmatched)
        return dict(found.reasons)


@pytest.mark.parametrize("stamp_ms", [0, -2])
def test_what_has_no_stamp_counts_for_nothing(stamp_ms: int) -> None:
    feed = Feed()
    feed.all(9_990)
    assert feed.image("front", stamp_ms) == "it has no stamp"
    assert feed.joint("a", stamp_ms) == {"a": "it has no stamp"}
    assert feed.sync.counts()["camera/front"].unstamped == 1
    found = feed.match()
    assert isinstance(found, Matched)
    assert found.capture_oldest_ns == 9_990 * MS


def test_a_whole_set_carries_its_oldest_and_newest_stamp() -> None:
    feed = Feed()
    feed.image("front", 9_980)
    feed.image("wrist", 9_985)
    feed.joint("a", 9_975, position=1.0)
    feed.now_ms += 3
    feed.joint("b", 9_990, position=2.0, velocity=None)
    found = feed.match()
    assert isinstance(found, Matched)
    assert found.images == ("front@9980", "wrist@9985")
    assert found.positions == (1.0, 2.0)
    assert found.velocities is None
    assert found.capture_oldest_ns == 9_975 * MS
    assert found.capture_newest_ns == 9_990 * MS
    assert found.receipt_ns == 10_003 * MS
    assert not found.clock_suspect


def test_one_set_is_given_once() -> None:
    feed = Feed()
    feed.all(9_990)
    assert isinstance(feed.match(), Matched)
    assert feed.reasons() == {}
    feed.joint("a", 9_995)
    assert feed.reasons() == {}


@pytest.mark.parametrize("missing", ["camera/front", "camera/wrist", "joint/a", "joint/b"])
def test_nothing_missing_is_filled(missing: str) -> None:
    feed = Feed()
    for camera in CONFIG.cameras:
        if missing != f"camera/{camera}":
            feed.image(camera, 9_990)
    for joint in CONFIG.joints:
        if missing != f"joint/{joint}":
            feed.joint(joint, 9_990)
    assert feed.reasons() == {missing: "nothing has come yet"}


def test_a_frozen_camera_that_goes_on_publishing_is_named() -> None:
    feed = Feed()
    feed.all(9_990)
    assert isinstance(feed.match(), Matched)
    for _ in range(10):
        feed.now_ms += 40
        assert feed.image("front", 9_990) == "frozen: it repeats one stamp"
        feed.image("wrist", feed.now_ms)
        for joint in CONFIG.joints:
            feed.joint(joint, feed.now_ms)
    assert list(feed.reasons()) == ["camera/front"]
    assert feed.reasons()["camera/front"].startswith("frozen")
    assert feed.sync.counts()["camera/front"].repeated == 10
    feed.image("front", feed.now_ms)
    assert isinstance(feed.match(), Matched)


def test_a_silent_source_is_missing_by_steady_age() -> None:
    feed = Feed()
    feed.all(9_990)
    feed.now_ms += 301
    feed.image("front", feed.now_ms)
    feed.image("wrist", feed.now_ms)
    feed.joint("a", feed.now_ms)
    assert feed.reasons() == {"joint/b": "silent for 0.30 s"}


def test_stamps_that_go_back_do_not_count() -> None:
    feed = Feed()
    feed.all(9_990)
    assert isinstance(feed.match(), Matched)
    assert feed.image("front", 9_890) == "its stamp went back by 0.100 s"
    assert feed.sync.counts()["camera/front"].back == 1
    assert feed.reasons() == {}
    feed.now_ms += 20
    feed.all(10_000)
    assert isinstance(feed.match(), Matched)


def test_a_source_that_was_lost_may_begin_anew_with_older_stamps() -> None:
    feed = Feed()
    feed.all(9_990)
    feed.now_ms += 1_000
    assert feed.image("front", 9_500) is None
    assert feed.sync.counts()["camera/front"].accepted == 2


def test_stamps_in_the_future_do_not_count_and_are_named() -> None:
    feed = Feed()
    feed.all(9_990)
    feed.now_ms += 400
    for camera in CONFIG.cameras:
        feed.image(camera, feed.now_ms)
    feed.joint("a", feed.now_ms)
    feed.joint("b", feed.now_ms + 500)
    reason = feed.reasons()["joint/b"]
    assert reason.startswith("its stamp lies 0.500 s in the future")


def test_a_stamp_slightly_ahead_counts_and_makes_the_clock_suspect() -> None:
    feed = Feed()
    feed.all(10_010)
    found = feed.match()
    assert isinstance(found, Matched)
    assert found.clock_suspect


def test_a_jump_of_receipt_minus_stamp_makes_the_clock_suspect() -> None:
    feed = Feed()
    feed.all(9_990)
    feed.match()
    feed.now_ms += 700
    for camera in CONFIG.cameras:
        feed.image(camera, 10_000)
    feed.now_ms += 1
    found = feed.match()
    assert isinstance(found, Unmatched)
    feed = Feed(
        SyncConfig(cameras=("front",), joints=(), slop_s=0.02, max_age_s=5.0, future_s=0.05)
    )
    feed.image("front", 9_990)
    feed.match()
    feed.now_ms += 700
    feed.image("front", 10_000)
    found = feed.match()
    assert isinstance(found, Matched)
    assert found.clock_suspect


def test_parts_outside_the_slop_are_named() -> None:
    feed = Feed()
    feed.image("front", 9_990)
    feed.image("wrist", 9_990)
    feed.joint("a", 9_990)
    feed.joint("b", 9_960)
    assert feed.reasons() == {"joint/b": "its nearest stamp is -0.030 s off, 0.02 s allowed"}


def test_the_reference_is_the_camera_that_is_behind() -> None:
    feed = Feed()
    for stamp_ms in (9_900, 9_933, 9_966):
        feed.image("front", stamp_ms)
    feed.image("wrist", 9_935)
    for stamp_ms in range(9_900, 9_990, 10):
        feed.joint("a", stamp_ms, position=stamp_ms)
        feed.joint("b", stamp_ms, position=stamp_ms)
    found = feed.match()
    assert isinstance(found, Matched)
    assert found.images == ("front@9933", "wrist@9935")
    assert found.positions == (9_930, 9_930)


def test_joints_alone_make_an_observation() -> None:
    feed = Feed(SyncConfig(cameras=(), joints=("a", "b"), slop_s=0.02, max_age_s=0.3, future_s=0.0))
    feed.joint("a", 9_990)
    feed.joint("b", 9_991)
    assert isinstance(feed.match(), Matched)
    feed.joint("b", 9_995)
    assert feed.reasons() == {}
    feed.joint("a", 9_996)
    assert isinstance(feed.match(), Matched)


def test_an_unreadable_message_is_the_reason_of_its_source() -> None:
    feed = Feed()
    feed.sync.note_trouble("joint_states", "joint_states.position[a]: nan: must be finite")
    feed.sync.note_trouble("camera/front", "camera/front.encoding: 'x': unknown")
    reasons = feed.reasons()
    assert "nan" in reasons["joint/a"]
    assert "'x'" in reasons["camera/front"]
    assert reasons["camera/wrist"] == "nothing has come yet"


def test_a_reset_forgets_every_stamp() -> None:
    feed = Feed()
    feed.all(9_990)
    feed.sync.reset()
    assert len(feed.reasons()) == 4
    feed.all(5_000)
    assert isinstance(feed.match(), Matched)


def test_bad_configurations_are_refused() -> None:
    with pytest.raises(UserError, match="holds a name twice"):
        SyncConfig(cameras=("a", "a"), joints=(), slop_s=0.0, max_age_s=1.0, future_s=0.0)
    with pytest.raises(UserError, match="needs a camera or a joint"):
        SyncConfig(cameras=(), joints=(), slop_s=0.0, max_age_s=1.0, future_s=0.0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["front", "wrist", "a", "b"]),
        st.integers(-200, 100),
        st.integers(0, 60),
    ),
    max_size=80,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_whatever_comes_a_set_holds_only_what_came_and_is_new(
    events: list[tuple[str, int, int]],
) -> None:
    feed = Feed()
    came: dict[str, set[str]] = {"front": set(), "wrist": set()}
    last = (-1, -1)
    for source, offset_ms, wait_ms in events:
        feed.now_ms += wait_ms
        stamp_ms = feed.now_ms + offset_ms
        if source in came:
            if feed.image(source, stamp_ms) is None:
                came[source].add(f"{source}@{stamp_ms}")
        else:
            feed.joint(source, stamp_ms, position=float(stamp_ms))
        found = feed.match()
        if isinstance(found, Unmatched):
            continue
        for camera, image in zip(CONFIG.cameras, found.images):
            assert image in came[camera]
        stamps = [int(image.split("@")[1]) for image in found.images]
        stamps += [int(position) for position in found.positions]
        reference = min(stamps[:2])
        assert max(abs(s - reference) for s in stamps) <= 2 * 20
        assert found.capture_oldest_ns == min(stamps) * MS
        assert found.capture_newest_ns == max(stamps) * MS
        assert max(stamps) <= feed.now_ms + 50
        assert (stamps[0], stamps[1]) != last
        last = (stamps[0], stamps[1])


@given(step_ms=st.integers(10, 100), ahead_ms=st.integers(1, 200))
def test_a_stamp_may_be_finer_than_a_simulated_clock(step_ms: int, ahead_ms: int) -> None:
    """Up to a step ahead no clock is suspect; beyond it the usual tolerance holds."""
    sync: ObservationSync[str] = ObservationSync(
        SyncConfig(cameras=("front",), joints=(), slop_s=0.02, max_age_s=0.3, future_s=0.05)
    )
    refused = sync.add_image(
        "front",
        "image",
        stamp_ns=(10_000 + ahead_ms) * MS,
        receipt_ns=10_000 * MS,
        receipt_s=10.0,
        clock_step_ns=step_ms * MS,
    )
    if ahead_ms > step_ms + 50:
        assert refused is not None
        assert refused.endswith(f"beyond the next step of /clock ({step_ms / 1e3:.3f} s)")
        return
    assert refused is None
    found = sync.match(10.0)
    assert isinstance(found, Matched)
    assert found.clock_suspect == (ahead_ms > step_ms)
    assert found.receipt_ns == (10_000 + min(ahead_ms, step_ms)) * MS
