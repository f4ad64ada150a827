#include "memory/region_table.h"

#include <utility>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/log.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

constexpr milliseconds kCollapseBudget{2000};                   // registering must not take much longer than that
constexpr std::string_view kForOneCall = "kvferry.store.call";  // memory of a call of the store's, which asks for it

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
  return {};
}

Status check_host(const RegionSource& source) {
  const Status mapped = check_mapped(source.data, source.length, (source.access & kRemoteWrite) != 0);
  if (mapped.ok()) return mapped;
  const MemoryPlace place = known_place(source.data);
  if (!place.is_device()) return mapped;
  const std::string kind(memory_kind_name(place.kind));
  return {Code::kInvalidArgument, "this is memory of " + kind + " device " + std::to_string(place.device) +
                                      ", not of the host: register it as kind '" + kind + "'"};
}

// Asks the driver; what it does not know as its own must not be handed to it later.
Result<MemoryPlace> check_device(const RegionSource& source) {
  const std::string kind(memory_kind_name(source.kind));
  if (!is_device_kind(source.kind)) {
    return {Code::kUnsupported, "no transport of this build reaches memory of kind '" + kind + "'"};
  }
  const auto driver = device_driver(source.kind);
  if (!driver.ok()) return driver.status().with_context("memory of kind '" + kind + "' cannot be reached");
  KVF_ASSIGN_OR_RETURN(const auto found, (*driver)->inspect(source.data));
  if (!found) return {Code::kInvalidArgument, "the " + kind + " driver does not know this address: it is other memory"};
  const std::uint64_t offset = reinterpret_cast<std::uint64_t>(source.data) - found->base;
  if (found->length != 0 && !range_fits(offset, source.length, found->length)) {
    return {Code::kInvalidArgument, std::to_string(source.length) + " bytes at offset " + std::to_string(offset) +
                                        " leave the allocation, which has " + std::to_string(found->length)};
  }
  return MemoryPlace{source.kind, found->device};
}

// Where the memory lies, after all that can be checked was.
Result<MemoryPlace> check_memory(const RegionSource& source) {
  KVF_RETURN_IF_ERROR(check_source(source));
  Result<MemoryPlace> place = MemoryPlace{source.kind, 0};
  if (source.kind == MemoryKind::kHost) {
    if (const Status host = check_host(source); !host.ok()) place = host;
  } else if (source.kind != MemoryKind::kFile) {
    place = check_device(source);
  }
  if (!place.ok()) return place.status().with_context("region '" + source.name + "'");
  return place;
}

}  // namespace

struct RegionTable::Region {
  RegionInfo info;
  MemoryPlace place;
  int numa_node = -1;
  std::byte* data = nullptr;
  bool shareable = false;  // may be registered again: the user's own memory

  bool same_as(const RegionSource& source) const {
    return shareable && source.arena_index == 0 && data == source.data && info.length == source.length &&
           info.kind == source.kind && info.access == source.access && info.name == source.name;
  }

  bool covers(const std::byte* begin, std::uint64_t length) const {
    const auto first = reinterpret_cast<std::uint64_t>(begin), base = reinterpret_cast<std::uint64_t>(data);
    return first >= base && range_fits(first - base, length, info.length);
  }

  std::mutex mutex;  // guards what follows; taken after the table's
  std::condition_variable unpinned;
  std::uint64_t registrations = 1;
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
MemoryPlace RegionTable::Pin::place() const { return region_->place; }
int RegionTable::Pin::numa_node() const { return region_->numa_node; }
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

std::optional<RegionInfo> RegionTable::add_to_twin(const RegionSource& source) {
  for (const Slot& slot : slots_) {
    if (!slot.region || !slot.region->same_as(source)) continue;
    const std::lock_guard lock(slot.region->mutex);
    if (slot.region->hidden) continue;  // on its way out
    ++slot.region->registrations;
    return slot.region->info;
  }
  return std::nullopt;
}

void RegionTable::note_registration(const RegionSource& source) {
  if (source.name == kForOneCall) return;  // not by the user, who needs no advice then
  const Clock::time_point now = Clock::now();
  std::optional<std::uint32_t> times;
  {
    const std::lock_guard lock(mutex_);
    times = rate_.count(reinterpret_cast<std::uint64_t>(source.data), source.length, now);
  }
  if (!times) return;
  log_event(
      LogLevel::kWarning, "registered_too_often",
      {{"address", address_text(reinterpret_cast<std::uint64_t>(source.data))},
       {"bytes", source.length},
       {"name", source.name},
       {"times", *times},
       {"within_s", RegistrationRate::kWindow.count()},
       {"advice",
        "register this memory once, keep the region for all transfers, and unregister it when the memory is given "
        "back: looking at it and telling peers takes longer than a small transfer"}});
}

Result<RegionInfo> RegionTable::add(RegionSource source) {
  if (source.arena_index == 0 && source.data != nullptr) {
    note_registration(source);
    const std::lock_guard lock(mutex_);
    if (auto shared = add_to_twin(source)) return *std::move(shared);
  }
  KVF_ASSIGN_OR_RETURN(const MemoryPlace place, check_memory(source));
  const bool in_memory = source.kind == MemoryKind::kHost;  // what same-host peers may copy by themselves
  if (advise_huge_pages_ && source.arena_index == 0 && in_memory) {
    advise_huge_pages(source.data, source.length);
    collapse_into_huge_pages(source.data, source.length, kCollapseBudget);
  }

  auto region = std::make_shared<Region>();
  region->data = static_cast<std::byte*>(source.data);
  region->place = place;
  region->shareable = source.arena_index == 0 && source.kind != MemoryKind::kFile;
  if (node_of_ && in_memory) region->numa_node = node_of_(source.data, source.length).value_or(-1);
  const std::lock_guard lock(mutex_);
  if (auto shared = add_to_twin(source)) return *std::move(shared);  // another thread was faster
  KVF_ASSIGN_OR_RETURN(const std::uint32_t index, free_slot());
  Slot& slot = slots_[index];
  const RegionKey key{index + 1, ++slot.generation};
  region->info = {key, source.length, source.kind, source.access, std::move(source.name)};
  slot.region = region;
  if (place.is_device()) device_regions_.fetch_add(1, std::memory_order_relaxed);
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

MemoryPlace RegionTable::place_of(const std::byte* begin, std::uint64_t length) const {
  if (!has_device_memory()) return {};
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (slot.region && slot.region->place.is_device() && slot.region->covers(begin, length)) return slot.region->place;
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

void RegionTable::hide_all() {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (!slot.region) continue;
    const std::lock_guard region_lock(slot.region->mutex);
    if (!slot.region->hidden && directory_ != nullptr) directory_->withdraw(slot.region->info.key.id);
    slot.region->hidden = true;
  }
}

void RegionTable::set_node_of(std::function<std::optional<int>(const void*, std::uint64_t)> node_of) {
  node_of_ = std::move(node_of);
}

void RegionTable::set_quiesce(std::function<Status(Deadline)> quiesce) { quiesce_ = std::move(quiesce); }

Status RegionTable::remove(RegionKey key, Deadline deadline) {
  std::shared_ptr<Region> region;
  {
    const std::lock_guard lock(mutex_);
    KVF_ASSIGN_OR_RETURN(region, lookup(key, true));
    const std::lock_guard region_lock(region->mutex);
    if (!region->hidden && --region->registrations > 0) return {};
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
  if (slot.region != region) return {};  // two threads may have removed it together
  slot.region = nullptr;
  if (region->place.is_device()) device_regions_.fetch_sub(1, std::memory_order_relaxed);
  return {};
}

}  // namespace kvferry
