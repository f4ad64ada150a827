#include "transport/tcp/request_cutter.h"

#include <algorithm>

#include "base/limits.h"

namespace kvferry {
namespace {

// Large enough that headers and wake-ups do not show, small enough that a window of them keeps both sides busy.
constexpr std::uint64_t kRequestBytes = 1u << 20;
constexpr std::size_t kRequestPieces = 256;
static_assert(kRequestBytes <= kMaxRequestPayloadBytes && kRequestPieces <= kMaxPiecesPerRequest);

}  // namespace

void TcpRequest::clear() {
  pieces.clear();
  local.clear();
  run.clear();
  payload_bytes = 0;
}

bool RequestCutter::next(TcpRequest* request) {
  request->clear();
  while (run_ < runs_.size() && request->pieces.size() < kRequestPieces && request->payload_bytes < kRequestBytes) {
    const RunOp& op = runs_[run_];
    const std::uint64_t take = std::min(op.length - offset_, kRequestBytes - request->payload_bytes);
    if (take > 0) {
      request->pieces.push_back({op.remote, op.remote_offset + offset_, take});
      request->local.push_back(op.local + offset_);
      request->run.push_back(run_);
      request->payload_bytes += take;
    }
    offset_ += take;
    if (offset_ == op.length) {
      ++run_;
      offset_ = 0;
    }
  }
  return !request->pieces.empty();
}

}  // namespace kvferry
