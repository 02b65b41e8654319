from loadmaster.base import run_queue


def test_a_thread_is_told_how_long_it_waited_but_for_its_naps(tmp_path, monkeypatch):
    """Each waking takes 5 us where cores are free: that is no waiting."""
    clock = tmp_path / "schedstat"
    monkeypatch.setattr(run_queue, "_PATH", str(clock))
    clock.write_text("900 20000 2\n")
    waited = run_queue.waited_for_a_core()
    assert waited() == 10_000
    clock.write_text("950 24000 4\n")
    assert waited() == 0
    clock.write_text("990 1039000 7\n")
    assert waited() == 1_000_000


def test_where_no_system_says(tmp_path, monkeypatch):
    monkeypatch.setattr(run_queue, "_PATH", str(tmp_path / "missing"))
    assert run_queue.waited_for_a_core()() == 0
