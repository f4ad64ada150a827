#include "store/log/segment_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/deadline.h"
#include "store/log/file_io.h"

namespace kvferry::store::log {
namespace {

constexpr milliseconds kPatience{60000};
constexpr std::uint64_t kFarthestHole = 256 << 20;  // more is never under way at once behind what is complete

// The place of the next byte that was ever written at or after `offset`, rounded down to a unit; `end` if there is
// none.
std::uint64_t next_data(const LogFile& file, std::uint64_t offset, std::uint64_t end) {
  const off_t found = ::lseek(file.fd.get(), static_cast<off_t>(offset), SEEK_DATA);
  if (found >= 0) return std::max(offset, static_cast<std::uint64_t>(found) / kUnit * kUnit);
  return errno == ENXIO ? end : offset;
}

class Walk {
 public:
  Walk(const LogFile& file, std::uint64_t file_bytes, const SegmentHeader& header, QueuePool& queues)
      : file_(file),
        header_(header),
        window_(queues, file, file_bytes),
        end_(std::min(file_bytes, header.length) / kUnit * kUnit) {}

  SegmentIndex run() {
    out_.tail = header_.data_begin();
    std::uint64_t at = header_.data_begin();
    while (at < end_ && at < out_.tail + kFarthestHole) {
      const std::uint64_t next = take_group(at);
      at = next != 0 ? next : next_data(file_, at + kUnit, end_);
    }
    return std::move(out_);
  }

 private:
  // Where the group ends; 0: there is none whose entries can be read.
  std::uint64_t take_group(std::uint64_t at) {
    const Result<GroupHead> head = GroupHead::decode(window_.get(at, GroupHead::kBytes), header_.salt, at);
    if (!head.ok() || head->first_record < out_.next_record) return 0;
    if (head->first_record + head->records > Erasures::capacity_of(header_.erasure_bytes)) return 0;
    Result<std::vector<RecordEntry>> entries =
        decode_group(*head, window_.get(at + GroupHead::kBytes, head->index_bytes));
    if (!entries.ok()) return 0;
    for (RecordEntry& entry : *entries) {
      if (entry.offset + entry.bytes <= end_) out_.entries.push_back(std::move(entry));
    }
    out_.next_record = head->first_record + head->records;
    out_.settled_to = std::max(out_.settled_to, head->settled_to);
    out_.tail = std::min(at + head->bytes, end_);
    return at + head->bytes;
  }

  const LogFile& file_;
  const SegmentHeader& header_;
  Window window_;
  const std::uint64_t end_;
  SegmentIndex out_;
};

Result<SegmentIndex> read_footer(const LogFile& file, std::uint64_t file_bytes, const SegmentHeader& header,
                                 QueuePool& queues) {
  if (file_bytes % kUnit != 0 || file_bytes < header.data_begin() + kUnit) {
    return {Code::kProtocolError, "not sealed"};
  }
  FileIo io(queues, deadline_in(kPatience));
  AlignedBuffer last(kUnit);
  KVF_RETURN_IF_ERROR(io.read(file, file_bytes - kUnit, last.span()));
  KVF_ASSIGN_OR_RETURN(const Trailer trailer,
                       Trailer::decode(ByteView(last.span()).last(Trailer::kBytes), header, file_bytes));
  if (trailer.next_record > Erasures::capacity_of(header.erasure_bytes)) {
    return {Code::kProtocolError, "trailer: too many records"};
  }
  AlignedBuffer memory(whole_units(trailer.footer_bytes));
  if (memory.data() == nullptr) return {Code::kResourceExhausted, "no memory for a footer"};
  KVF_RETURN_IF_ERROR(io.read(file, trailer.footer_offset, memory.span()));
  SegmentIndex out;
  KVF_ASSIGN_OR_RETURN(
      out.entries, decode_footer(trailer, header.data_begin(), ByteView(memory.span()).first(trailer.footer_bytes)));
  out.next_record = trailer.next_record;
  out.tail = out.settled_to = trailer.footer_offset;
  out.sealed = true;
  return out;
}

}  // namespace

Result<SegmentHeader> read_segment_header(const LogFile& file, QueuePool& queues) {
  if (file.bytes < kUnit) return {Code::kNotFound, file.path + " is empty"};
  AlignedBuffer unit(kUnit);
  FileIo io(queues, deadline_in(kPatience));
  KVF_RETURN_IF_ERROR(io.read(file, 0, unit.span()));
  const auto bytes = unit.span();
  if (std::all_of(bytes.begin(), bytes.end(), [](std::byte value) { return value == std::byte{0}; })) {
    return {Code::kNotFound, file.path + " was never used"};
  }
  const Result<SegmentHeader> header = SegmentHeader::decode(bytes);
  if (!header.ok()) return header.status().with_context(file.path);
  if (header->data_begin() > file.bytes) return {Code::kDataCorrupt, file.path + " ends in its header"};
  return header;
}

Result<Erasures> read_erasures(const LogFile& file, const SegmentHeader& header, QueuePool& queues) {
  AlignedBuffer memory(header.erasure_bytes);
  if (memory.data() == nullptr) return {Code::kResourceExhausted, file.path + ": no memory for what is erased"};
  KVF_RETURN_IF_ERROR(FileIo(queues, deadline_in(kPatience)).read(file, kUnit, memory.span()));
  return Erasures::decode(memory.span());
}

SegmentIndex read_segment_index(const LogFile& file, const SegmentHeader& header, QueuePool& queues) {
  const std::uint64_t file_bytes = file_length(file.fd.get());
  Result<SegmentIndex> footer = read_footer(file, file_bytes, header, queues);
  return footer.ok() ? *std::move(footer) : Walk(file, file_bytes, header, queues).run();
}

}  // namespace kvferry::store::log
