import threading

from physis_ros.node.asked_thread import AskedThread

LIMIT_S = 20.0


def test_it_acts_once_more_for_all_that_was_asked_meanwhile():
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def act():
        began.release()
        assert go_on.acquire(timeout=LIMIT_S)

    thread = AskedThread("asked", act, failed=lambda error: None)
    thread.start()
    thread.ask()
    assert began.acquire(timeout=LIMIT_S)
    for _ in range(3):
        thread.ask()
    go_on.release()
    assert began.acquire(timeout=LIMIT_S)
    go_on.release()
    thread.stop()
    assert not began.acquire(blocking=False)


def test_an_error_is_handed_on():
    failed, seen = threading.Event(), []

    def act():
        raise ValueError("no")

    def take(error):
        seen.append(str(error))
        failed.set()

    thread = AskedThread("asked", act, take)
    thread.start()
    thread.ask()
    assert failed.wait(LIMIT_S)
    thread.stop()
    assert seen == ["no"]
