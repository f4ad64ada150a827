#include "store/directory.h"

#include <algorithm>
#include <set>

namespace kvferry::store {
namespace {

bool names(const HolderEntry& entry, HolderIndex holder) {
  const auto end = entry.holders.begin() + entry.count;
  return std::find(entry.holders.begin(), end, holder) != end;
}

}  // namespace

Directory::Added Directory::check_locked(Shard& part, const Announced& object, const HolderEntry* entry) const {
  if (!object.fresh && part.removed.contains(object.id)) return Added::kRemoved;
  if (entry != nullptr && entry->digest != object.digest) return Added::kConflict;
  return Added::kTaken;
}

Directory::Said Directory::announce(const Announced& object, HolderIndex holder) {
  Shard& part = shard(object.id);
  const std::lock_guard lock(part.mutex);
  HolderEntry* entry = part.table.find(object.id);
  const Added added = check_locked(part, object, entry);
  if (added != Added::kTaken) return {added, 0};
  const auto own = own_(object.id);
  if (own && *own != object.digest) return {Added::kConflict, 0};
  if (object.fresh) part.removed.erase(object.id);
  if (entry == nullptr) {
    entry = &part.table.add(object.id);
    entry->digest = object.digest;
    entry->bytes = object.bytes & HolderEntry::kMostBytes;
  }
  // Never what it was before for this id, not even if it was forgotten in between: whoever doubts an older word must
  // not take this one back.
  entry->told = ++part.told;
  entry->replicas = static_cast<std::uint8_t>(std::clamp<std::uint32_t>(object.replicas, 1, UINT8_MAX));
  if (!names(*entry, holder)) {
    if (entry->count < HolderEntry::kHolders) {
      entry->holders[entry->count++] = holder;
    } else {
      auto& more = part.more[object.id];
      if (std::ranges::find(more, holder) == more.end()) more.push_back(holder);
    }
  }
  const auto more = part.more.find(object.id);
  return {Added::kTaken,
          static_cast<std::uint32_t>(entry->count + (more == part.more.end() ? 0 : more->second.size()))};
}

Directory::Added Directory::claim(const Announced& object, const std::function<void()>& commit) {
  Shard& part = shard(object.id);
  const std::lock_guard lock(part.mutex);
  const Added added = check_locked(part, object, part.table.find(object.id));
  if (added != Added::kTaken) return added;
  if (object.fresh) part.removed.erase(object.id);
  commit();
  return added;
}

void Directory::put_again(std::span<const ObjectId> ids) {
  for (const ObjectId& id : ids) {
    Shard& part = shard(id);
    const std::lock_guard lock(part.mutex);
    if (part.removed.contains(id) && own_(id)) part.removed.erase(id);
  }
}

// True if nobody holds it any more.
bool Directory::drop_locked(Shard& part, HolderEntry& entry, HolderIndex holder) {
  const auto more = part.more.find(entry.id);
  if (more != part.more.end()) std::erase(more->second, holder);
  const auto end = entry.holders.begin() + entry.count;
  const auto found = std::find(entry.holders.begin(), end, holder);
  if (found != end) {
    if (more != part.more.end() && !more->second.empty()) {
      *found = more->second.back();
      more->second.pop_back();
    } else {
      *found = entry.holders[--entry.count];
    }
  }
  if (more != part.more.end() && more->second.empty()) part.more.erase(more);
  return entry.count == 0;
}

void Directory::retract(const ObjectId& id, HolderIndex holder) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  HolderEntry* const entry = part.table.find(id);
  if (entry != nullptr && drop_locked(part, *entry, holder)) part.table.erase(entry);
}

Location Directory::location_of(const Shard& part, const HolderEntry& entry) {
  Location out{entry.bytes, entry.digest, entry.replicas, {}, static_cast<std::uint16_t>(entry.told)};
  out.holders.assign(entry.holders.begin(), entry.holders.begin() + entry.count);
  const auto more = part.more.find(entry.id);
  if (more != part.more.end()) out.holders.insert(out.holders.end(), more->second.begin(), more->second.end());
  return out;
}

void Directory::retract_if_unchanged(const ObjectId& id, HolderIndex holder, std::uint16_t told) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  HolderEntry* const entry = part.table.find(id);
  if (entry == nullptr || entry->told != told) return;
  if (drop_locked(part, *entry, holder)) part.table.erase(entry);
}

std::optional<Location> Directory::find(const ObjectId& id) const {
  const Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  const HolderEntry* const entry = part.table.find(id);
  if (entry == nullptr) return std::nullopt;
  return location_of(part, *entry);
}

bool Directory::contains(const ObjectId& id) const {
  const Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  return part.table.find(id) != nullptr;
}

void Directory::forget_oldest_locked(Shard& part) {
  const auto [when, id] = part.removals.front();
  part.removals.pop_front();
  const auto known = part.removed.find(id);
  if (known != part.removed.end() && known->second == when) part.removed.erase(known);  // else removed again later
}

Directory::Removed Directory::remove(const ObjectId& id, Clock::time_point now) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  Removed out;
  if (HolderEntry* const entry = part.table.find(id)) {
    out.holders = location_of(part, *entry).holders;
    part.more.erase(id);
    part.table.erase(entry);
  }
  out.again = !part.removed.insert_or_assign(id, now).second;
  part.removals.emplace_back(now, id);
  if (part.removals.size() > kMaxTombstones) forget_oldest_locked(part);
  return out;
}

void Directory::drop_holder(HolderIndex holder) {
  for (Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    for (std::size_t i = part.table.size(); i-- > 0;) {  // backwards: erase() moves the last one
      HolderEntry& entry = part.table.at(i);
      if (drop_locked(part, entry, holder)) part.table.erase(&entry);
    }
  }
}

void Directory::retain(const std::function<bool(const ObjectId&)>& keep) {
  for (Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    for (std::size_t i = part.table.size(); i-- > 0;) {
      HolderEntry& entry = part.table.at(i);
      if (keep(entry.id)) continue;
      part.more.erase(entry.id);
      part.table.erase(&entry);
    }
  }
}

void Directory::for_each(const std::function<void(const ObjectId&, const Location&)>& visit) const {
  for (const Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    for (std::size_t i = 0; i < part.table.size(); ++i) {
      visit(part.table.at(i).id, location_of(part, part.table.at(i)));
    }
  }
}

std::uint64_t Directory::entries() const {
  std::uint64_t sum = 0;
  for (const Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    sum += part.table.size();
  }
  return sum;
}

std::uint64_t Directory::memory_bytes() const {
  constexpr std::uint64_t kMapNode = 64;
  std::uint64_t sum = 0;
  for (const Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    sum += part.table.memory_bytes() + (part.more.size() + part.removed.size()) * kMapNode +
           part.removals.size() * sizeof(part.removals.front());
  }
  return sum;
}

std::vector<ObjectId> Directory::removed(const std::function<bool(const ObjectId&)>& kind) const {
  std::vector<ObjectId> out;
  for (const Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    for (const auto& [when, id] : part.removals) {
      if (kind(id)) out.push_back(id);
    }
  }
  return out;
}

void Directory::forget_removed(std::span<const ObjectId> ids) {
  const std::set<ObjectId> gone(ids.begin(), ids.end());
  for (Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    std::erase_if(part.removals, [&](const auto& one) { return gone.contains(one.second); });
    std::erase_if(part.removed, [&](const auto& one) { return gone.contains(one.first); });
  }
}

void Directory::expire_tombstones(Clock::time_point now) {
  for (Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    while (!part.removals.empty() && now - part.removals.front().first >= kRememberRemoved) forget_oldest_locked(part);
  }
}

}  // namespace kvferry::store
