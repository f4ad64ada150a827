from __future__ import annotations

from kvferry.handoff import LeaseIssuer, LeaseTable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(lease_s=10.0):
    clock = Clock()
    return LeaseTable(lease_s, clock=clock), LeaseIssuer(), clock


def admit(table, issuer, owner):
    lease = issuer.issue()
    table.admit(issuer.authority, issuer.issued_through, [(lease, owner)])
    return lease


def test_release_frees_the_owner_once():
    table, issuer, _ = make()
    lease = admit(table, issuer, "r1")
    assert table.held() == 1
    assert table.release(lease, "done") is True
    assert table.take_ended() == {"r1"}
    assert table.take_ended() == set()
    assert table.release(lease, "done") is False
    assert table.take_ended() == set()
    assert table.take_counts() == {"granted": 1, "done": 1, "duplicate_notices": 1}


def test_expiry_and_late_notice():
    table, issuer, clock = make()
    lease = admit(table, issuer, "r1")
    clock.now += 9.9
    assert table.expire() == 0
    clock.now += 0.2
    assert table.expire() == 1
    assert table.take_ended() == {"r1"}
    assert table.release(lease, "done") is False
    assert table.renew([lease]) == 0
    counts = table.take_counts()
    assert counts["expired"] == 1
    assert counts["late_notices"] == 1
    assert counts["stale_renewals"] == 1


def test_renewal_extends():
    table, issuer, clock = make()
    lease = admit(table, issuer, "r1")
    for _ in range(5):
        clock.now += 8
        assert table.renew([lease, "nonsense"]) == 1
        assert table.expire() == 0
    assert table.release(lease, "done") is True


def test_an_overdue_lease_is_held_until_it_has_been_ended():
    table, issuer, clock = make()
    lease = admit(table, issuer, "r1")
    clock.now += 11
    # Its blocks cannot have been reused yet: they are handed back only when expire() has ended the lease.
    assert table.release(lease, "done") is True
    assert table.take_ended() == {"r1"}


def test_release_before_the_worker_has_heard_of_the_lease():
    table, issuer, _ = make()
    lease = issuer.issue()
    assert table.release(lease, "done") is True
    assert table.release(lease, "done") is False  # a duplicate, also while early
    assert table.take_ended() == set()
    table.admit(issuer.authority, issuer.issued_through, [(lease, "r1")])
    assert table.take_ended() == {"r1"}
    assert table.held() == 0
    assert table.release(lease, "done") is False


def test_a_gap_in_the_sequence_is_not_early():
    table, issuer, _ = make()
    skipped = issuer.issue()
    admit(table, issuer, "r2")
    assert table.release(skipped, "done") is False
    assert table.take_counts()["unknown_notices"] == 1


def test_a_lease_of_an_earlier_incarnation_is_unknown():
    table, issuer, _ = make()
    admit(table, issuer, "r1")
    assert table.release(LeaseIssuer().issue(), "done") is False


def test_nonsense_is_unknown():
    table, issuer, _ = make()
    assert table.release("nonsense", "done") is False
    admit(table, issuer, "r1")
    assert table.release("nonsense", "rejected") is False
    assert table.take_ended() == set()


def test_early_releases_are_bounded_and_forgotten(monkeypatch):
    monkeypatch.setattr("kvferry.handoff.producer.MAX_EARLY_RELEASES", 3)
    table, issuer, clock = make()
    leases = [issuer.issue() for _ in range(5)]
    for lease in leases:
        assert table.release(lease, "done") is True
    assert table.take_counts()["early_forgotten"] == 2
    clock.now += 11
    table.expire()
    assert table.take_counts()["early_forgotten"] == 3
    # A forgotten one costs at most one lease time: the lease starts and runs out.
    table.admit(issuer.authority, issuer.issued_through, [(leases[0], "r0")])
    assert table.held() == 1
    clock.now += 11
    table.expire()
    assert table.take_ended() == {"r0"}


def test_repeated_admission_is_ignored():
    table, issuer, _ = make()
    lease = admit(table, issuer, "r1")
    table.admit(issuer.authority, issuer.issued_through, [(lease, "r1")])
    table.release(lease, "done")
    table.admit(issuer.authority, issuer.issued_through, [(lease, "r1")])
    assert table.take_ended() == {"r1"}
    assert table.held() == 0
    assert table.take_counts()["duplicate_admissions"] == 2


def test_only_what_was_leased_is_confirmed():
    table, issuer, _ = make()
    lease = issuer.issue("these blocks")
    assert table.release(lease, "done", "these blocks") is False  # nobody has vouched for the issuer yet
    table.admit(issuer.authority, issuer.issued_through, [(lease, "r1")])
    assert table.release(lease, "done", "other blocks") is False
    assert table.release(lease[:-1] + ("0" if lease[-1] != "0" else "1"), "done", "these blocks") is False
    assert table.take_ended() == set()  # the lease goes on for its rightful reader
    assert table.release(lease, "done", "these blocks") is True
    assert table.take_counts()["forged_notices"] == 3


def test_an_early_release_is_checked_too():
    table, issuer, _ = make()
    table.admit(issuer.authority, 0, [])
    lease = issuer.issue("these blocks")
    assert table.release(lease, "done", "other blocks") is False
    assert table.release(lease, "done", "these blocks") is True
