"""SGLang's control messages: which ones its threads get to see, and those that tell of aborts.

SGLang's threads read them without looking: a message of another form ends the thread, and with it the
server's part in every later request. So it is looked at before, and dropped.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import ABORT_TAG
from sglang.srt.disaggregation.mooncake.conn import KVArgsRegisterInfo, MooncakeKVManager, TransferInfo
from sglang.srt.disaggregation.utils import DisaggregationMode

logger = logging.getLogger(__name__)

# What decoding a message of the wrong form raises.
_MALFORMED = (ValueError, IndexError, struct.error, RuntimeError, TypeError)
_MOST_ABORTED = 4096  # rooms remembered, for decode servers that come late
_STAGING_TAGS = (b"WATERMARK", b"STAGING_RSP", b"STAGING_REQ", b"CHUNK_READY")


class CheckedMessages(MooncakeKVManager):
    """A manager's part in messages. `_errands` runs what must not hold up SGLang's threads."""

    _errands: ThreadPoolExecutor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._aborted: OrderedDict[int, None] = OrderedDict()  # rooms, the latest last
        self._handed_on: int | None = None  # the room of the message that SGLang's thread got last
        super().__init__(*args, **kwargs)

    def room_opened(self, room: int) -> None:
        """A request begins; whatever had the number before it is forgotten."""
        self._aborted.pop(room, None)

    def room_aborted(self, room: int) -> None:
        """Tell a request's decode ranks, those that are heard of later included, that nothing will come."""
        self._aborted[room] = None
        while len(self._aborted) > _MOST_ABORTED:
            self._aborted.popitem(last=False)
        self._tell_aborted(room, self._room_notify_targets(room))

    def _tell_aborted(self, room: int, targets: list[tuple[str, int]]) -> None:
        # Not by the scheduler's thread: a message to a process that is gone may wait.
        self._errands.submit(
            self.send_kv_status_message,
            targets=targets,
            bootstrap_room=room,
            status=KVPoll.Failed,
            failure_reason="the prefill server aborted the request",
        )

    def _make_worker_recv(self, socket: Any, timeout_ms: int = 500) -> Callable[[], Any]:
        receive = super()._make_worker_recv(socket, timeout_ms)
        prefill = self.disaggregation_mode == DisaggregationMode.PREFILL
        check = self._is_for_prefill if prefill else self._is_for_decode

        def receive_checked() -> Any:
            self._look_back()
            message = receive()
            if message is None:
                return None
            try:
                good = check(message)
            except _MALFORMED as error:
                logger.warning("a message with %d parts is dropped: %s", len(message), error)
                return None
            return message if good else None

        return receive_checked

    def _is_for_prefill(self, message: list[bytes]) -> bool:
        if message[0] in _STAGING_TAGS:
            return bool(self.enable_staging)
        if message[0] == ABORT_TAG:
            return True
        if message[0] == b"None":
            info = KVArgsRegisterInfo.from_zmq(message)
            self.requires_dcp_relayout(info.dst_dcp_size, info.dst_dcp_rank)
            _port_of(info.mooncake_session_id)
            return True
        request = TransferInfo.from_zmq(message)
        _port_of(request.mooncake_session_id)
        if request.room in self._aborted:
            self._tell_aborted(request.room, [(request.endpoint, request.dst_port)])
            return False
        if request.mooncake_session_id in self.decode_kv_args_table:
            self._handed_on = request.room
            return True
        self.send_kv_status_message(
            targets=[(request.endpoint, request.dst_port)],
            bootstrap_room=request.room,
            status=KVPoll.Failed,
            failure_reason="the prefill server was started anew and does not know this decode server yet",
        )
        return False

    def _look_back(self) -> None:
        """See to a request that was aborted while SGLang's thread took its message in."""
        room, self._handed_on = self._handed_on, None
        if room is not None and room in self._aborted:
            self._tell_aborted(room, self._room_notify_targets(room))
            self.transfer_infos.pop(room, None)
            self.req_to_decode_prefix_len.pop(room, None)

    def _is_for_decode(self, message: list[bytes]) -> bool:
        if message[0] in _STAGING_TAGS:
            return bool(self.enable_staging)
        # Metadata comes by the engine, into registered memory; nothing else writes there.
        return bool(message[0] != self.AUX_DATA_HEADER)


def _port_of(session: str) -> int:
    return int(session.rsplit(":", 1)[1])
