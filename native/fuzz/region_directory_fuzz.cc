// Region directory as a hostile owner may fill it: what the reader lets through is inside the address space.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "fuzz_input.h"
#include "memory/address_range.h"
#include "memory/region_directory.h"

using namespace kvferry;

namespace {

constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kFuzzedBytes = kHeaderBytes + 4 * 64;  // header and the first entries

class Directory {  // one writable memfd for all inputs: making one for each would be slow
 public:
  Directory() {
    const auto good = RegionDirectoryWriter::create(owner_);
    fuzz::require(good.ok());
    fd_ = UniqueFd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    fuzz::require(::ftruncate(fd_.get(), static_cast<off_t>(good->length())) == 0);
    fuzz::require(::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    fuzz::require(::pread(good->fd(), header_, sizeof(header_), 0) == sizeof(header_));
    void* const data = ::mmap(nullptr, good->length(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    fuzz::require(data != MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
  }

  // The first byte says whether the header is the right one, so that both sides of that check are reached.
  void fill(ByteView bytes) {
    std::memset(data_, 0, kFuzzedBytes);
    if (bytes.empty()) return;
    const bool good_header = (bytes[0] & std::byte{1}) != std::byte{0};
    const ByteView rest = bytes.subspan(1, std::min(bytes.size() - 1, kFuzzedBytes - (good_header ? kHeaderBytes : 0)));
    if (good_header) std::memcpy(data_, header_, sizeof(header_));
    std::copy(rest.begin(), rest.end(), data_ + (good_header ? kHeaderBytes : 0));
  }
  Result<RegionDirectoryReader> open() const {
    return RegionDirectoryReader::open(UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)), owner_);
  }

 private:
  NodeId owner_{{1, 2, 3}};
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::byte header_[kHeaderBytes] = {};
};

void check(const RegionDirectoryReader& reader, std::uint32_t id) {
  const auto entry = reader.read(id);
  if (!entry.ok()) return;
  fuzz::require(entry->key.id == id && entry->length != 0 && entry->arena_index <= kMaxArenas);
  fuzz::require(range_fits(entry->base, entry->length, UINT64_MAX));
  fuzz::require(range_fits(entry->arena_offset, entry->length, UINT64_MAX));
  const std::uint64_t offset = entry->base ^ entry->arena_offset;  // as good as any
  const auto resolved = reader.resolve(entry->key, offset, entry->length, Op::kRead);
  fuzz::require(!resolved.ok() || range_fits(offset, entry->length, resolved->length));
  fuzz::require(reader.still_current(entry->key).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto* const directory = new Directory;
  directory->fill(fuzz::view(data, size));
  const auto reader = directory->open();
  if (!reader.ok()) {
    fuzz::require(reader.status().code() == Code::kProtocolError);
    return 0;
  }
  for (const std::uint32_t id : {0U, 1U, 2U, 3U, 4U, kMaxRegions, kMaxRegions + 1, UINT32_MAX}) check(*reader, id);
  return 0;
}
