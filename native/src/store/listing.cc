// Walks over all objects. They let go of the lock in between, so that a node with millions of objects goes on serving.
#include <algorithm>
#include <string>
#include <utility>

#include "store/local_store_impl.h"

namespace kvferry::store {
namespace {

constexpr Slot kSlotsPerStep = 1024;

}  // namespace

void LocalStoreImpl::for_each(const std::function<bool(const ObjectId&, const Held&)>& visit) const {
  Slot end = 0;
  {
    const Lock lock(mutex_);
    end = table_->slots_used();
  }
  const std::uint64_t now_ms = monotonic_ms();
  for (Slot slot = 0; slot < end; ++slot) {
    const auto found = table_->reader().at(slot);
    if (found && found->second.expires_ms > now_ms && !visit(found->first, found->second.held)) return;
  }
}

void LocalStoreImpl::for_each_record(std::uint64_t now_ms,
                                     const std::function<void(Slot, const ObjectRecord&)>& visit) const {
  for (Slot first = 0;; first += kSlotsPerStep) {
    const Lock lock(mutex_);
    if (first >= table_->slots_used()) return;
    const Slot end = std::min(first + kSlotsPerStep, table_->slots_used());
    for (Slot slot = first; slot < end; ++slot) {
      if (table_->records().has(slot) && !table_->expired(slot, now_ms)) visit(slot, table_->records().at(slot));
    }
  }
}

std::vector<ObjectInfo> LocalStoreImpl::list(std::string_view tenant, std::string_view prefix, std::string_view after,
                                             std::uint32_t limit) const {
  const std::uint64_t now_ms = monotonic_ms();
  std::vector<ObjectInfo> first;  // a heap, the greatest key on top
  const auto by_key = [](const ObjectInfo& a, const ObjectInfo& b) { return a.key < b.key; };
  for_each_record(now_ms, [&](Slot slot, const ObjectRecord& record) {
    if (record.tenant != tenant || !record.key.starts_with(prefix) || record.key <= after) return;
    if (first.size() == limit && (limit == 0 || record.key >= first.front().key)) return;
    if (first.size() == limit) {
      std::pop_heap(first.begin(), first.end(), by_key);
      first.pop_back();
    }
    const SharedIndex::Entry entry = table_->entry(slot);
    ObjectInfo info{std::string(record.key), std::string(record.tenant), entry.held.bytes, entry.held.digest,
                    entry.held.tier,         entry.held.replicas,        record.tags(),    std::nullopt};
    if (entry.expires_ms != kNeverExpires) info.expires_in = milliseconds(entry.expires_ms - now_ms);
    first.push_back(std::move(info));
    std::push_heap(first.begin(), first.end(), by_key);
  });
  std::sort_heap(first.begin(), first.end(), by_key);
  return first;
}

std::vector<ObjectId> LocalStoreImpl::with_tag(std::string_view tenant, std::string_view tag) const {
  std::vector<ObjectId> ids;
  for_each_record(monotonic_ms(), [&](Slot slot, const ObjectRecord& record) {
    if (record.tenant == tenant && record.has_tag(tag)) ids.push_back(table_->id(slot));
  });
  return ids;
}

std::optional<NewObject> LocalStoreImpl::describe(const ObjectId& id) const {
  const Lock lock(mutex_);
  const auto slot = table_->find(id);
  const std::uint64_t now_ms = monotonic_ms();
  if (!slot || table_->expired(*slot, now_ms)) return std::nullopt;
  return table_->describe(*slot, now_ms);
}

NodeStats LocalStoreImpl::stats() const {
  NodeStats stats;
  {
    const Lock lock(mutex_);
    stats.objects = table_->objects();
    stats.dram_objects = table_->dram_objects();
    stats.ssd_objects = table_->ssd_objects();
    stats.dram_bytes = memory_.arenas().capacity();
    stats.dram_used = used_bytes();
    stats.dram_largest_free = memory_.arenas().largest_free();
    stats.clients = memory_.clients();
    stats.index_bytes = table_->index_bytes();
    stats.metadata_bytes = table_->memory_bytes() + memory_.memory_bytes() + puts_.memory_bytes();
    stats.pinned_objects = memory_.count_pinned();
  }
  stats.counters = counters_.snapshot();
  if (!ssd_) return stats;
  const LogUsage usage = ssd_->usage();
  stats.ssd_bytes = usage.capacity;
  stats.ssd_used = usage.disk_bytes;
  stats.ssd_written = usage.written_bytes;
  stats.ssd_stored = usage.stored_bytes;
  if (const auto trouble = ssd_->trouble()) stats.degraded.push_back(*trouble);
  return stats;
}

Status LocalStoreImpl::check() const {
  const Lock lock(mutex_);
  KVF_RETURN_IF_ERROR(memory_.arenas().check());
  KVF_RETURN_IF_ERROR(table_->check());
  const std::uint64_t sum = memory_.arenas().free_bytes() + table_->dram_bytes() + memory_.limbo_bytes() +
                            puts_.reserved_bytes() + loading_bytes_ + quick_.bytes();
  if (sum == memory_.arenas().capacity()) return {};
  return {Code::kInternal, "of " + std::to_string(memory_.arenas().capacity()) + " bytes " +
                               std::to_string(memory_.arenas().free_bytes()) + " are free, " +
                               std::to_string(table_->dram_bytes()) + " used, " +
                               std::to_string(memory_.limbo_bytes()) + " in limbo, " +
                               std::to_string(puts_.reserved_bytes()) + " reserved, " + std::to_string(loading_bytes_) +
                               " being read in, " + std::to_string(quick_.bytes()) + " offered"};
}

}  // namespace kvferry::store
