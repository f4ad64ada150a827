"""Case 1.2: a side-channel address left at its default points every node at itself."""

from __future__ import annotations

import pytest

from kvferry.config import TransferOptions
from kvferry.errors import KVFerryError
from kvferry.transfer import Engine

SECRET = "sixteen bytes or more"


@pytest.mark.parametrize("advertise", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.0.0.2:0"])
def test_a_node_that_others_can_reach_does_not_advertise_its_loopback(advertise):
    with pytest.raises(KVFerryError, match=r"advertise .* loopback"):
        Engine(TransferOptions(bind="0.0.0.0:0", advertise=advertise, cluster_secret=SECRET))


def test_a_wildcard_is_not_advertised_by_default():
    with pytest.raises(KVFerryError, match=r"set advertise"):
        Engine(TransferOptions(bind="0.0.0.0:0", cluster_secret=SECRET))


def test_on_loopback_everything_may_stay_there():
    with Engine(TransferOptions(bind="127.0.0.1:0", advertise="127.0.0.1:0")) as engine:
        assert engine.endpoint.port != 0
