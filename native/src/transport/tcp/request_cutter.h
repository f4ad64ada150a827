// Cuts the runs of one execute() into requests that fit the wire. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/transport.h"
#include "wire/messages.h"

namespace kvferry {

struct TcpRequest {  // reused, so that its vectors keep their memory
  std::uint64_t id = 0;
  std::vector<wire::PieceDescriptor> pieces;
  std::vector<std::byte*> local;  // one per piece
  std::vector<std::size_t> run;   // one per piece: index into the runs
  std::uint64_t payload_bytes = 0;

  void clear();
};

class RequestCutter {
 public:
  explicit RequestCutter(std::span<const RunOp> runs) : runs_(runs) {}

  bool next(TcpRequest* request);  // false when all runs are cut

 private:
  const std::span<const RunOp> runs_;
  std::size_t run_ = 0;
  std::uint64_t offset_ = 0;  // within that run
};

}  // namespace kvferry
