// Frame header: whatever is accepted is within its caps and encodes back to the same bytes.
#include <algorithm>

#include "fuzz_input.h"
#include "wire/frame.h"

using namespace kvferry;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kFrameHeaderBytes) return 0;
  const ByteView bytes = fuzz::view(data, size);
  const auto header = FrameHeader::decode(bytes.first<kFrameHeaderBytes>());
  if (!header.ok()) {
    fuzz::require(header.status().code() == Code::kProtocolError);
    return 0;
  }
  fuzz::require(header->body_bytes <= max_body_bytes(header->type));
  fuzz::require(std::ranges::equal(header->encode(), bytes.first<kFrameHeaderBytes>()));
  fuzz::require(!header->check_body(bytes.subspan(kFrameHeaderBytes)).ok() ||
                header->body_bytes == size - kFrameHeaderBytes);
  return 0;
}
