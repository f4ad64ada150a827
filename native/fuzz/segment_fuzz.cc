// The files of the store's log as a damaged disk may return them: what the decoders let through keeps its promises. The
// first byte says which decoder, and whether its checksums are put right first, so that the fuzzer gets past them.
#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "fuzz_input.h"
#include "store/log/erasures.h"
#include "store/log/format.h"

using namespace kvferry;
using namespace kvferry::store::log;

namespace {

constexpr std::uint64_t kSalt = 7;

void put_sum(Bytes* bytes, std::size_t length) {
  if (bytes->size() < length) return;
  const std::uint32_t sum = little_endian(crc32c(ByteView(*bytes).first(length - 4)));
  std::memcpy(bytes->data() + length - 4, &sum, sizeof(sum));
}

void check_entries(const std::vector<RecordEntry>& entries, std::uint64_t begin, std::uint64_t end) {
  for (const RecordEntry& entry : entries) {
    fuzz::require(entry.offset >= begin && entry.offset <= end && entry.bytes <= end - entry.offset);
    fuzz::require(entry.sums.size() == chunks_of(entry.bytes));
    fuzz::require(entry.key.size() <= store::kMaxKeyBytes && entry.attributes.size() <= kMaxAttributeBytes);
  }
}

void header(const Bytes& bytes) {
  const auto decoded = SegmentHeader::decode(bytes);
  if (!decoded.ok()) return;
  fuzz::require(decoded->data_begin() < decoded->length && decoded->length <= kMaxSegmentBytes);
  const Bytes again = decoded->encode();
  fuzz::require(std::equal(again.begin(), again.end(), bytes.begin()));
}

void group(Bytes bytes, bool right_sums) {
  const std::uint64_t offset = 2 * kUnit;
  const auto head = GroupHead::decode(bytes, kSalt, offset);
  if (!head.ok()) return;
  fuzz::require(head->index_bytes <= head->bytes - GroupHead::kBytes && head->settled_to <= offset);
  GroupHead used = *head;
  const ByteView index = ByteView(bytes).subspan(GroupHead::kBytes);
  if (right_sums) {
    used.index_bytes = std::min<std::uint64_t>(used.index_bytes, index.size());
    used.index_sum = crc32c(index.first(used.index_bytes));
  }
  if (used.index_bytes > index.size()) return;
  const auto entries = decode_group(used, index.first(used.index_bytes));
  if (!entries.ok()) return;
  fuzz::require(entries->size() == used.records);
  check_entries(*entries, offset + GroupHead::kBytes + used.index_bytes, offset + used.bytes);
}

// Footer first, its trailer behind it.
void footer(const Bytes& bytes, bool right_sums) {
  if (bytes.size() < Trailer::kBytes) return;
  const SegmentHeader of{1, kSalt, 1 << 20, kUnit};
  const ByteView entries = ByteView(bytes).first(bytes.size() - Trailer::kBytes);
  auto trailer = Trailer::decode(ByteView(bytes).last(Trailer::kBytes), of, 1 << 20);
  if (!trailer.ok()) return;
  fuzz::require(trailer->footer_offset >= of.data_begin() && trailer->footer_offset < 1 << 20);
  if (right_sums) {
    trailer->footer_bytes = entries.size();
    trailer->footer_sum = crc32c(entries);
  }
  const auto decoded = decode_footer(*trailer, of.data_begin(), entries);
  if (!decoded.ok()) return;
  check_entries(*decoded, of.data_begin(), trailer->footer_offset);
  for (std::size_t i = 0; i < decoded->size(); ++i) {
    fuzz::require((*decoded)[i].record < trailer->next_record);
    fuzz::require(i == 0 || (*decoded)[i - 1].record < (*decoded)[i].record);
  }
}

void erasures(const Bytes& bytes) {
  Erasures decoded = Erasures::decode(bytes);
  fuzz::require(decoded.capacity() == bytes.size() / kUnit * 8 * Erasures::kSectorBits);
  fuzz::require(decoded.contains(static_cast<std::uint32_t>(decoded.capacity())));
  if (decoded.capacity() == 0) return;
  decoded.add(100);
  fuzz::require(decoded.contains(100));
  Bytes unit(kUnit);
  decoded.copy_unit(decoded.unit_of(100), unit);
  fuzz::require(Erasures::decode(unit).contains(100));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteView view = fuzz::view(data, size);
  const auto how = static_cast<unsigned>(view[0]);
  const bool right_sums = (how & 4) != 0;
  Bytes bytes(view.begin() + 1, view.end());
  switch (how & 3) {
    case 0:
      if (right_sums) put_sum(&bytes, SegmentHeader::kBytes);
      header(bytes);
      break;
    case 1:
      if (right_sums) put_sum(&bytes, GroupHead::kBytes);
      group(std::move(bytes), right_sums);
      break;
    case 2:
      if (right_sums && bytes.size() >= Trailer::kBytes) {
        Bytes trailer(bytes.end() - static_cast<std::ptrdiff_t>(Trailer::kBytes), bytes.end());
        put_sum(&trailer, Trailer::kBytes);
        std::copy(trailer.begin(), trailer.end(), bytes.end() - static_cast<std::ptrdiff_t>(Trailer::kBytes));
      }
      footer(bytes, right_sums);
      break;
    default:
      erasures(bytes);
  }
  return 0;
}
