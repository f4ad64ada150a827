#include "store/log/group_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kLeastDirect = 64 << 10;  // shorter pieces are gathered: the copy costs less than the request
constexpr std::uint64_t kBeginBytes = 512 << 10;  // so much goes to the disk with one system call

bool is_packed(std::uint64_t bytes) { return bytes < GroupWriter::kPackBelow && (bytes % kUnit != 0 || bytes == 0); }

}  // namespace

void ChunkSums::add(ByteView bytes) {
  while (!bytes.empty()) {
    const std::uint64_t take = std::min<std::uint64_t>(bytes.size(), kChunkBytes - in_chunk_);
    sum_ = crc32c(bytes.first(take), sum_);
    in_chunk_ += take;
    bytes = bytes.subspan(take);
    if (in_chunk_ == kChunkBytes) finish();
  }
}

void ChunkSums::finish() {
  if (in_chunk_ == 0) return;
  sums_->push_back(sum_);
  in_chunk_ = 0;
  sum_ = 0;
}

// Walks over the bytes of several pieces.
class PieceCursor {
 public:
  explicit PieceCursor(ConstPieces pieces) : pieces_(pieces) { skip_empty(); }

  bool done() const { return piece_ == pieces_.size(); }
  ByteView here() const { return pieces_[piece_].subspan(at_); }  // to the end of the piece; not if done()
  void advance(std::uint64_t bytes) {                             // within the piece
    at_ += bytes;
    skip_empty();
  }
  // As much as there is, at most out.size().
  std::uint64_t copy(MutableByteView out) {
    std::uint64_t copied = 0;
    while (!done() && copied < out.size()) {
      const ByteView from = here();
      const std::uint64_t take = std::min<std::uint64_t>(from.size(), out.size() - copied);
      std::memcpy(out.data() + copied, from.data(), take);
      copied += take;
      advance(take);
    }
    return copied;
  }

 private:
  void skip_empty() {
    while (piece_ < pieces_.size() && at_ == pieces_[piece_].size()) {
      ++piece_;
      at_ = 0;
    }
  }
  ConstPieces pieces_;
  std::size_t piece_ = 0;
  std::uint64_t at_ = 0;
};

void GroupWriter::add(const LogWrite& write) {
  const LogRecord& from = write.record;
  const bool packed = is_packed(from.bytes);
  records_.push_back({&write, packed, packed ? packed_bytes_ : aligned_bytes_});
  (packed ? packed_bytes_ : aligned_bytes_) += packed ? from.bytes : whole_units(from.bytes);
  index_bytes_ += RecordEntry::encoded_bytes(from.key.size(), from.attributes.size(), from.bytes);
  payload_bytes_ += from.bytes;
}

void GroupWriter::place_entries(const GroupPlace& place) {
  const std::uint64_t packed = place.offset + GroupHead::kBytes + index_bytes_;
  const std::uint64_t aligned = place.offset + whole_units(head_bytes());
  entries_.clear();
  entries_.reserve(records_.size());
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const LogRecord& from = records_[i].write->record;
    RecordEntry entry;
    entry.record = place.first_record + static_cast<std::uint32_t>(i);
    entry.id = from.id;
    entry.sequence = place.first_sequence + i;
    entry.digest = from.digest;
    entry.offset = (records_[i].packed ? packed : aligned) + records_[i].place;
    entry.bytes = from.bytes;
    entry.key = from.key;
    entry.attributes = from.attributes;
    entry.sums.reserve(static_cast<std::size_t>(chunks_of(from.bytes)));
    entries_.push_back(std::move(entry));
  }
}

void GroupWriter::copy_into(const Record& record, RecordEntry* entry, std::byte* target) const {
  PieceCursor(record.write->pieces).copy({target, entry->bytes});
  ChunkSums sums(&entry->sums);
  sums.add({target, entry->bytes});
  sums.finish();
}

Status GroupWriter::write(const LogFile& file, const GroupPlace& place, bool sync, QueuePool& queues,
                          Deadline deadline) {
  status_ = {};
  queues_ = &queues;
  place_entries(place);
  const bool copy_all = bytes() <= kCopyGroupBelow;
  head_ = AlignedBuffer(copy_all ? bytes() : whole_units(head_bytes()));
  if (head_.data() == nullptr) return {Code::kResourceExhausted, file.path + ": no memory to put a group together"};
  KVF_ASSIGN_OR_RETURN(const QueuePool::Lease lease, queues.take(deadline));
  RequestPump pump(lease.queue(), lease.bounce(), deadline, *this);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].packed || copy_all) {
      copy_into(records_[i], &entries_[i], head_.data() + (entries_[i].offset - place.offset));
    } else if (entries_[i].bytes < kLeastDirect) {
      collect(file, records_[i], &entries_[i], &pump);
    } else {
      write_payload(file, records_[i], &entries_[i], &pump);
    }
    if (!status_.ok()) break;
  }
  flush(&pump);
  if (status_.ok()) write_head(file, place, &pump);
  pump.finish();
  if (sync && status_.ok()) {
    pump.start({IoRequest::Kind::kSyncData, file.fd.get(), nullptr, 0, 0});
    pump.finish();
  }
  return status_.with_context(file.path);
}

// Short payloads that lie side by side are one request.
void GroupWriter::collect(const LogFile& file, const Record& record, RecordEntry* entry, RequestPump* pump) {
  const std::uint64_t bytes = whole_units(entry->bytes);
  if (collected_.length + bytes > kBounceBytes || collected_.offset + collected_.length != entry->offset) flush(pump);
  if (collected_.length == 0) {
    collected_ = {IoRequest::Kind::kWrite, file.fd.get(), nullptr, 0, entry->offset, pump->take_bounce()};
    if (collected_.bounce == BounceBuffers::kNone) {
      status_ = {Code::kResourceExhausted, "no memory for aligned buffers"};
      return;
    }
    collected_.data = pump->bounce(collected_.bounce);
  }
  std::byte* const target = collected_.data + collected_.length;
  copy_into(record, entry, target);
  std::memset(target + entry->bytes, 0, bytes - entry->bytes);
  collected_.length += static_cast<std::uint32_t>(bytes);
}

void GroupWriter::flush(RequestPump* pump) {
  if (collected_.length > 0) pump->start(collected_);
  collected_ = {};
}

// The checksums are made while the bytes are on their way to the disk: only the head, which is written last, has them.
void GroupWriter::write_payload(const LogFile& file, const Record& record, RecordEntry* entry, RequestPump* pump) {
  PieceCursor cursor(record.write->pieces);
  ChunkSums sums(&entry->sums);
  for (std::uint64_t at = 0; at < entry->bytes && status_.ok();) {
    const ByteView here = cursor.here();
    const std::uint64_t whole = std::min<std::uint64_t>(here.size() / kUnit * kUnit, kRequestBytes);
    const bool aligned = reinterpret_cast<std::uintptr_t>(here.data()) % file.memory_alignment == 0;
    IoPart part{IoRequest::Kind::kWrite, file.fd.get(), nullptr, 0, entry->offset + at};
    std::uint64_t bytes = whole;
    if (aligned && whole >= std::min(kLeastDirect, entry->bytes - at)) {
      part.data = const_cast<std::byte*>(here.data());  // the kernel only reads it; the field serves both directions
      part.length = static_cast<std::uint32_t>(whole);
      cursor.advance(whole);
    } else {
      bytes = gather(&cursor, std::min(kBounceBytes, entry->bytes - at), pump, &part);
      if (bytes == 0) break;
    }
    start(part, pump);
    sums.add({part.data, bytes});  // a buffer of ours stays as it is until we take another one
    at += bytes;
  }
  sums.finish();
}

void GroupWriter::start(const IoPart& part, RequestPump* pump) {
  pump->start(part);
  not_begun_ += part.length;
  if (not_begun_ < kBeginBytes) return;
  pump->begin();
  not_begun_ = 0;
}

// Into an aligned buffer, with zeros up to whole units. The count of bytes; 0: there is no memory.
std::uint64_t GroupWriter::gather(PieceCursor* cursor, std::uint64_t bytes, RequestPump* pump, IoPart* part) {
  part->bounce = pump->take_bounce();
  if (part->bounce == BounceBuffers::kNone) {
    status_ = {Code::kResourceExhausted, "no memory for aligned buffers"};
    return 0;
  }
  part->data = pump->bounce(part->bounce);
  part->length = static_cast<std::uint32_t>(whole_units(bytes));
  cursor->copy({part->data, bytes});
  std::memset(part->data + bytes, 0, part->length - bytes);
  return bytes;
}

void GroupWriter::write_head(const LogFile& file, const GroupPlace& place, RequestPump* pump) {
  ByteWriter index(index_bytes_);
  for (const RecordEntry& entry : entries_) entry.encode(index);
  const Bytes encoded = index.take();
  GroupHead head;
  head.salt = place.salt;
  head.offset = place.offset;
  head.bytes = bytes();
  head.settled_to = place.settled_to;
  head.first_sequence = place.first_sequence;
  head.first_record = place.first_record;
  head.records = static_cast<std::uint32_t>(records_.size());
  head.index_bytes = encoded.size();
  head.index_sum = crc32c(encoded);
  const Bytes begin = head.encode();
  std::memcpy(head_.data(), begin.data(), begin.size());
  std::memcpy(head_.data() + begin.size(), encoded.data(), encoded.size());
  for (std::uint64_t at = 0; at < head_.size(); at += kRequestBytes) {
    pump->start({IoRequest::Kind::kWrite, file.fd.get(), head_.data() + at,
                 static_cast<std::uint32_t>(std::min(kRequestBytes, head_.size() - at)), place.offset + at});
  }
}

void GroupWriter::part_ended(const IoPart&, const Status& status) {
  if (status_.ok()) status_ = status;
  if (status.ok()) queues_->note_progress();
}

}  // namespace kvferry::store::log
