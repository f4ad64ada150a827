#include "memory/region_table.h"

#include <utility>

#include "base/deadline.h"
#include "base/limits.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

constexpr milliseconds kCollapseBudget{2000};  // registering must not take much longer than that

std::string region_text(RegionKey key) {
  return "region " + std::to_string(key.id) + " generation " + std::to_string(key.generation);
}

// A file is known to its own node only: what holds for memory and for what goes over the wire does not concern it.
Status check_file(const RegionSource& source) {
  if (source.data == nullptr && source.length > 0) return {};
  return {Code::kInvalidArgument, "region '" + source.name + "': a file has a length and no memory"};
}

Status check_source(const RegionSource& source) {
  if (source.kind == MemoryKind::kFile) return check_file(source);
  if (source.kind != MemoryKind::kHost) {
    return {Code::kUnsupported, "memory of kind '" + std::string(memory_kind_name(source.kind)) +
                                    "' cannot be registered by this build; copy it to host memory first"};
  }
  if (source.data == nullptr || source.length == 0) {
    return {Code::kInvalidArgument, "region '" + source.name + "': a null or empty buffer"};
  }
  if (source.name.size() > kMaxRegionNameBytes) {
    return {Code::kInvalidArgument, "a region name of " + std::to_string(source.name.size()) + " bytes; at most " +
                                        std::to_string(kMaxRegionNameBytes) + " are allowed"};
  }
  if ((source.access & ~(kRemoteRead | kRemoteWrite)) != 0) {
    return {Code::kInvalidArgument, "region '" + source.name + "': unknown access bits"};
  }
  const Status mapped = check_mapped(source.data, source.length, (source.access & kRemoteWrite) != 0);
  return mapped.ok() ? mapped : mapped.with_context("region '" + source.name + "'");
}

}  // namespace

struct RegionTable::Region {
  RegionInfo info;
  std::byte* data = nullptr;

  bool covers(const std::byte* begin, std::uint64_t length) const {
    const auto first = reinterpret_cast<std::uint64_t>(begin), base = reinterpret_cast<std::uint64_t>(data);
    return first >= base && range_fits(first - base, length, info.length);
  }

  std::mutex mutex;  // guards what follows; taken after the table's
  std::condition_variable unpinned;
  std::uint64_t pins = 0;
  bool hidden = false;
};

RegionTable::Pin& RegionTable::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    release();
    region_ = std::move(other.region_);
  }
  return *this;
}

std::byte* RegionTable::Pin::data() const { return region_->data; }
std::uint64_t RegionTable::Pin::length() const { return region_->info.length; }
RegionKey RegionTable::Pin::key() const { return region_->info.key; }
bool RegionTable::Pin::covers(const std::byte* begin, std::uint64_t length) const {
  return region_->covers(begin, length);
}

Result<std::byte*> RegionTable::Pin::at(std::uint64_t offset, std::uint64_t length) const {
  if (!range_fits(offset, length, region_->info.length)) {
    return {Code::kOutOfRange, region_text(key()) + " has " + std::to_string(region_->info.length) + " bytes; offset " +
                                   std::to_string(offset) + " length " + std::to_string(length) + " leaves it"};
  }
  return region_->data + offset;
}

void RegionTable::Pin::release() {
  const auto region = std::exchange(region_, nullptr);
  if (!region) return;
  const std::lock_guard lock(region->mutex);
  if (--region->pins == 0 && region->hidden) region->unpinned.notify_all();
}

RegionTable::RegionTable(RegionDirectoryWriter* directory, bool advise_huge_pages)
    : directory_(directory), advise_huge_pages_(advise_huge_pages) {}

RegionTable::~RegionTable() {
  if (directory_ == nullptr) return;
  for (const Slot& slot : slots_) {
    if (slot.region) directory_->withdraw(slot.region->info.key.id);
  }
}

Result<std::uint32_t> RegionTable::free_slot() {
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].region && slots_[i].generation != UINT32_MAX) return i;
  }
  if (slots_.size() >= kMaxRegions) {
    return {Code::kResourceExhausted, "all " + std::to_string(kMaxRegions) + " regions are in use; unregister some"};
  }
  slots_.emplace_back();
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

Result<RegionInfo> RegionTable::add(RegionSource source) {
  KVF_RETURN_IF_ERROR(check_source(source));
  const bool in_memory = source.kind != MemoryKind::kFile;
  if (advise_huge_pages_ && source.arena_index == 0 && in_memory) {
    advise_huge_pages(source.data, source.length);
    collapse_into_huge_pages(source.data, source.length, kCollapseBudget);
  }

  auto region = std::make_shared<Region>();
  region->data = static_cast<std::byte*>(source.data);
  const std::lock_guard lock(mutex_);
  KVF_ASSIGN_OR_RETURN(const std::uint32_t index, free_slot());
  Slot& slot = slots_[index];
  const RegionKey key{index + 1, ++slot.generation};
  region->info = {key, source.length, source.kind, source.access, std::move(source.name)};
  slot.region = region;
  if (directory_ != nullptr && in_memory) {
    directory_->publish({key, reinterpret_cast<std::uint64_t>(source.data), source.length, source.access, source.kind,
                         source.arena_index, source.arena_offset});
  }
  return region->info;
}

Result<std::shared_ptr<RegionTable::Region>> RegionTable::lookup(RegionKey key, bool hidden_too) const {
  if (key.id == 0 || key.id > slots_.size()) return {Code::kNotFound, "there is no region " + std::to_string(key.id)};
  const Slot& slot = slots_[key.id - 1];
  if (key.generation < slot.generation) {
    return {Code::kStale,
            region_text(key) + " was unregistered; the id is at generation " + std::to_string(slot.generation)};
  }
  if (key.generation > slot.generation) return {Code::kNotFound, region_text(key) + " was never registered"};
  if (!slot.region) return {Code::kStale, region_text(key) + " was unregistered"};
  if (!hidden_too) {
    const std::lock_guard lock(slot.region->mutex);
    if (slot.region->hidden) return {Code::kStale, region_text(key) + " is being unregistered"};
    ++slot.region->pins;
  }
  return slot.region;
}

Result<RegionTable::Pin> RegionTable::pin(RegionKey key) const {
  const std::lock_guard lock(mutex_);
  KVF_ASSIGN_OR_RETURN(auto region, lookup(key, false));
  return Pin(std::move(region));
}

RegionTable::Pin RegionTable::pin_covering(const std::byte* begin, std::uint64_t length) const {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (!slot.region || slot.region->info.kind != MemoryKind::kHost) continue;
    const std::lock_guard region_lock(slot.region->mutex);
    if (slot.region->hidden || !slot.region->covers(begin, length)) continue;
    ++slot.region->pins;
    return Pin(slot.region);
  }
  return {};
}

Result<RegionTable::Pin> RegionTable::pin_for_peer(RegionKey key, std::uint64_t offset, std::uint64_t length,
                                                   Op op) const {
  KVF_ASSIGN_OR_RETURN(Pin pinned, pin(key));
  if (pinned.region_->info.kind == MemoryKind::kFile) {
    return {Code::kPermissionDenied, region_text(key) + " is a file; only its own node reads and writes it"};
  }
  const std::uint8_t needed = op == Op::kRead ? kRemoteRead : kRemoteWrite;
  if ((pinned.region_->info.access & needed) == 0) {
    return {Code::kPermissionDenied, region_text(key) + (op == Op::kRead ? " may not be read" : " may not be written")};
  }
  if (const auto range = pinned.at(offset, length); !range.ok()) return range.status();
  return pinned;
}

Result<RegionInfo> RegionTable::find(std::uint32_t id) const {
  const std::lock_guard lock(mutex_);
  if (id == 0 || id > slots_.size() || !slots_[id - 1].region) {
    return {Code::kNotFound, "there is no region " + std::to_string(id)};
  }
  Region& region = *slots_[id - 1].region;
  const std::lock_guard region_lock(region.mutex);
  if (region.hidden) return {Code::kStale, region_text(region.info.key) + " is being unregistered"};
  return region.info;
}

std::vector<RegionInfo> RegionTable::list() const {
  std::vector<RegionInfo> out;
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (!slot.region) continue;
    const std::lock_guard region_lock(slot.region->mutex);
    if (!slot.region->hidden) out.push_back(slot.region->info);
  }
  return out;
}

void RegionTable::set_quiesce(std::function<Status(Deadline)> quiesce) { quiesce_ = std::move(quiesce); }

Status RegionTable::remove(RegionKey key, Deadline deadline) {
  std::shared_ptr<Region> region;
  {
    const std::lock_guard lock(mutex_);
    KVF_ASSIGN_OR_RETURN(region, lookup(key, true));
    const std::lock_guard region_lock(region->mutex);
    if (!region->hidden && directory_ != nullptr) directory_->withdraw(key.id);
    region->hidden = true;
  }
  {
    std::unique_lock lock(region->mutex);
    if (!region->unpinned.wait_until(lock, deadline, [&] { return region->pins == 0; })) {
      return {Code::kDeadlineExceeded, region_text(key) + " is still used by " + std::to_string(region->pins) +
                                           " transfers; cancel them or wait longer"};
    }
  }
  if (quiesce_) {
    if (const Status quiet = quiesce_(deadline); !quiet.ok()) return quiet.with_context(region_text(key));
  }
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[key.id - 1];
  if (slot.region == region) slot.region = nullptr;  // two threads may have removed it together
  return {};
}

}  // namespace kvferry
