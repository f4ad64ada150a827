#include "wire/frame_reader.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace kvferry {

// Makes at least `bytes` contiguous bytes available.
Status FrameReader::need(std::size_t bytes, const Wait& wait) {
  if (end_ - begin_ >= bytes) return {};
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  while (end_ < bytes) {
    const iovec room{buffer_.data() + end_, buffer_.size() - end_};
    KVF_ASSIGN_OR_RETURN(const std::size_t got, channel_.recv_some({&room, 1}, wait));
    end_ += got;
  }
  return {};
}

Result<FrameReader::View> FrameReader::next(const Wait& wait) {
  KVF_RETURN_IF_ERROR(need(kFrameHeaderBytes, wait));
  KVF_ASSIGN_OR_RETURN(const FrameHeader header, FrameHeader::decode(buffered().first<kFrameHeaderBytes>()));
  const std::size_t total = kFrameHeaderBytes + header.body_bytes + channel_.tag_bytes();
  if (total > buffer_.size()) {
    return {Code::kProtocolError, std::string(frame_type_name(header.type)) + " is too long for a data connection"};
  }
  if (const Status got = need(total, wait); !got.ok()) {
    return got.with_context(std::string(frame_type_name(header.type)) + " body");
  }
  const ByteView frame = buffered().first(total);
  const View view{header, frame.subspan(kFrameHeaderBytes, header.body_bytes)};
  KVF_RETURN_IF_ERROR(channel_.check_frame(header, frame.first(kFrameHeaderBytes), view.body,
                                           frame.subspan(kFrameHeaderBytes + header.body_bytes)));
  begin_ += total;
  return view;
}

Result<Frame> FrameReader::next_of_any_length(const Wait& wait) {
  KVF_RETURN_IF_ERROR(need(kFrameHeaderBytes, wait));
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  std::ranges::copy(buffered().first<kFrameHeaderBytes>(), bytes.begin());
  KVF_ASSIGN_OR_RETURN(const FrameHeader header, FrameHeader::decode(bytes));
  begin_ += kFrameHeaderBytes;
  Frame frame{header, Bytes(header.body_bytes), {}};
  wire::FrameTag tag{};
  std::vector<iovec> rest;
  rest.reserve(3);  // one more is for what is read ahead
  rest.push_back({frame.body.data(), frame.body.size()});
  rest.push_back({tag.data(), channel_.tag_bytes()});
  if (const Status got = payload(&rest, wait); !got.ok()) {
    return got.with_context(std::string(frame_type_name(header.type)) + " body");
  }
  KVF_RETURN_IF_ERROR(channel_.check_frame(header, bytes, frame.body, as_byte_view(tag)));
  return frame;
}

bool FrameReader::has_frame() {
  const Wait now{Clock::now()};
  if (const Status head = need(kFrameHeaderBytes, now); !head.ok()) return head.code() != Code::kDeadlineExceeded;
  const auto header = FrameHeader::decode(buffered().first<kFrameHeaderBytes>());
  if (!header.ok()) return true;
  const std::size_t total = kFrameHeaderBytes + header->body_bytes + channel_.tag_bytes();
  int there = 0;
  if (end_ - begin_ < total && ::ioctl(channel_.fd(), FIONREAD, &there) != 0) return true;
  return end_ - begin_ + static_cast<std::size_t>(there) >= total;
}

Status FrameReader::payload(std::vector<iovec>* segments, const Wait& wait) {
  std::span<iovec> rest(*segments);
  drop_front(rest, 0);
  {
    const GatePass pass(wait.gate);
    if (!pass.inside()) return gate_closed();
    while (!rest.empty() && has_read_ahead()) {
      const std::size_t part = std::min(end_ - begin_, rest.front().iov_len);
      std::memcpy(rest.front().iov_base, buffer_.data() + begin_, part);
      begin_ += part;
      drop_front(rest, part);
    }
  }
  if (rest.empty()) return {};
  begin_ = end_ = 0;
  std::size_t left = 0;
  for (const iovec& segment : rest) left += segment.iov_len;
  const auto first = segments->size() - rest.size();
  segments->push_back({buffer_.data(), buffer_.size()});
  rest = std::span(*segments).subspan(first);
  while (left > 0) {
    KVF_ASSIGN_OR_RETURN(const std::size_t got, channel_.recv_some(rest, wait));
    end_ = got > left ? got - left : 0;
    left -= got - end_;
    drop_front(rest, got - end_);
  }
  return {};
}

}  // namespace kvferry
