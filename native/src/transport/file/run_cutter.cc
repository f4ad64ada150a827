#include "transport/file/run_cutter.h"

#include <algorithm>

namespace kvferry {
namespace {

constexpr std::uint64_t kSmallRead = 64u << 10;  // up to here one request with its surroundings beats three

std::uint64_t down(std::uint64_t value, std::uint64_t unit) { return value - value % unit; }
std::uint64_t up(std::uint64_t value, std::uint64_t unit) { return down(value + unit - 1, unit); }

}  // namespace

RunCutter::RunCutter(const FileGeometry& geometry, Op op, const std::byte* memory, std::uint64_t offset,
                     std::uint64_t length)
    : geometry_(geometry),
      op_(op),
      address_(reinterpret_cast<std::uint64_t>(memory)),
      offset_(offset),
      length_(length) {}

FilePart RunCutter::take(FilePart::How how, std::uint64_t length) {
  const FilePart part{how, at_, length, offset_ + at_, length};
  at_ += length;
  return part;
}

FilePart RunCutter::take_with_surroundings(std::uint64_t length) {
  FilePart part = take(FilePart::How::kBounced, length);
  part.io_offset = down(offset_ + part.begin, geometry_.unit);
  part.io_length = up(offset_ + at_, geometry_.unit) - part.io_offset;
  return part;
}

FilePart RunCutter::next() {
  const std::uint64_t left = length_ - at_;
  const std::uint64_t unit = geometry_.unit;
  if (!geometry_.direct) return take(FilePart::How::kBuffered, std::min(left, kRequestBytes));
  const std::uint64_t beyond = (offset_ + at_) % unit;
  const bool ragged = beyond != 0 || left % unit != 0;
  if (op_ == Op::kRead && ragged && left <= kSmallRead) return take_with_surroundings(left);
  if (beyond == 0 && left >= unit) {
    const bool fits = (address_ + at_) % geometry_.memory_alignment == 0;
    const std::uint64_t most = std::max(down(fits ? kRequestBytes : kBounceBytes, unit), unit);
    return take(fits ? FilePart::How::kDirect : FilePart::How::kBounced, std::min(down(left, unit), most));
  }
  const std::uint64_t rest = std::min(left, unit - beyond);
  return op_ == Op::kWrite ? take(FilePart::How::kBuffered, rest) : take_with_surroundings(rest);
}

}  // namespace kvferry
