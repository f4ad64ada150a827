// One data connection, initiator's side. Requests are pipelined: several are under way, so no round trip is waited for.
#pragma once

#include <sys/uio.h>

#include <array>
#include <vector>

#include "base/socket.h"
#include "transport/tcp/request_cutter.h"
#include "transport/transport.h"
#include "wire/channel.h"

namespace kvferry {

class TcpRail final : public Rail {
 public:
  TcpRail(Channel channel, Interrupt interrupt, Endpoint endpoint, bool checksum);

  std::string_view transport() const override { return "tcp"; }
  Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                 const std::atomic<bool>& cancelled) override;
  void interrupt() override { interrupt_.set(); }

 private:
  static constexpr std::size_t kWindow = 4;  // requests under way

  Status pipeline(const Batch& batch, std::span<Status> results, const Wait& wait, const std::atomic<bool>& cancelled);
  Status send_request(Op op, TcpRequest* request, const Wait& wait);
  Status receive_reply(Op op, const TcpRequest& request, std::span<Status> results, const Wait& wait);
  Status receive_read_data(const Frame& frame, const TcpRequest& request, std::span<Status> results, const Wait& wait);
  Status receive_write_ack(const Frame& frame, const TcpRequest& request, std::span<Status> results);
  Status verify(const TcpRequest& request, std::span<const wire::PieceResult> replies);

  Channel channel_;
  Interrupt interrupt_;
  const Endpoint endpoint_;
  const bool checksum_;
  std::uint64_t last_request_id_ = 0;
  std::array<TcpRequest, kWindow> window_;
  std::size_t first_unfinished_ = 0;  // of execute()'s runs: replies come in order, so all before it are done
  std::vector<iovec> segments_;       // scratch
};

}  // namespace kvferry
