// One data connection, initiator's side. Requests are pipelined: several are under way, so no round trip is waited for.
// The connection has a number, so that the owner can be told over the control connection to end it
// (PeerContext::fence).
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <functional>
#include <vector>

#include "transport/tcp/list_slots.h"
#include "transport/tcp/mixed_payload.h"
#include "transport/tcp/request_cutter.h"
#include "transport/transport.h"
#include "wire/frame_reader.h"
#include "wire/messages.h"

namespace kvferry {

class TcpRail final : public Rail {
 public:
  struct Connection {
    Channel channel;
    Interrupt interrupt;
    Endpoint endpoint;         // for messages
    std::uint32_t number = 0;  // unique among those of this node, not 0
    std::function<Status(std::uint32_t connection, Deadline deadline)> fence;
    milliseconds link_timeout{0};                                                        // see Wait
    std::function<MemoryPlace(const std::byte* data, std::uint64_t length)> place_of{};  // see PeerContext
  };
  TcpRail(Connection connection, bool checksum);

  std::string_view transport() const override { return "tcp"; }
  Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                 const std::atomic<bool>& cancelled) override;
  void interrupt() override {
    connection_.interrupt.set();
    interrupted_ = true;  // after it: whoever sees the flag clears both
  }

 private:
  static constexpr std::size_t kWindow = 4;  // requests under way

  Status pipeline(const Batch& batch, std::span<Status> results, const Wait& wait, const std::atomic<bool>& cancelled);
  Status send_request(const Batch& batch, TcpRequest* request, const Wait& wait, const std::atomic<bool>& cancelled);
  Status receive_reply(Op op, const TcpRequest& request, std::span<Status> results, const Wait& wait,
                       const std::atomic<bool>& cancelled);
  Status receive_read_data(const FrameReader::View& frame, const TcpRequest& request, std::span<Status> results,
                           const Wait& wait, const std::atomic<bool>& cancelled);
  Status receive_write_ack(const FrameReader::View& frame, const TcpRequest& request, std::span<Status> results);
  Status verify(const TcpRequest& request, const Wait& wait, const std::atomic<bool>& cancelled);
  MemoryPlace place_of(const std::byte* data, std::uint64_t length) const;
  void add_local(std::byte* data, std::uint64_t length);
  Status fence();

  Connection connection_;  // its socket is closed by fence(): the rail is of no more use then
  FrameReader reader_;
  const bool checksum_;
  std::atomic<bool> interrupted_{false};
  std::uint32_t last_request_ = 0;
  std::array<TcpRequest, kWindow> window_;
  std::size_t sent_ = 0, answered_ = 0;  // requests of this execute()
  std::size_t first_unfinished_ = 0;     // of its runs: replies come in order, so all before it are done
  ListSlots lists_;

  Bytes head_;  // scratch, as are the rest: a request allocates nothing
  std::vector<iovec> segments_;
  MixedPayload mixed_;  // used if a piece of ours lies on an accelerator
  std::vector<std::uint32_t> checksums_;
  wire::ReadData read_data_;
  wire::WriteAck write_ack_;
};

}  // namespace kvferry
