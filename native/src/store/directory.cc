#include "store/directory.h"

#include <algorithm>
#include <map>
#include <utility>

namespace kvferry::store {
namespace {

bool names(const HolderEntry& entry, HolderIndex holder) {
  const auto end = entry.holders.begin() + entry.count;
  return std::find(entry.holders.begin(), end, holder) != end;
}

}  // namespace

// A copy, or what was held before: it may come here although another owner removed it and told this node, just while
// not all know the same members.
Directory::Added Directory::check_locked(Shard& part, const Announced& object, const HolderEntry* entry) const {
  if (!object.fresh && (part.removed.contains(object.id) || kept_.is_gone(object.id))) return Added::kRemoved;
  if (entry != nullptr && entry->digest != object.digest) return Added::kConflict;
  return Added::kTaken;
}

// Whether it had been removed, here or by an owner that told this node.
bool Directory::forget_removal_locked(Shard& part, const Announced& object) {
  if (!object.fresh) return false;
  const bool here = part.removed.erase(object.id) > 0;
  const bool kept = kept_.forget(object.id);
  if (object.alone) part.put_alone.put(object.id, Clock::now());
  if (kept && !here) note_removed_locked(part, {object.id, Clock::now(), true});  // its owner may be back
  if (here) note_change({object.id, Clock::now(), true});
  return here || kept;
}

void Directory::note_change(const Removal& change) {
  const std::lock_guard lock(changes_mutex_);
  changes_.push_back(change);
}

Directory::Said Directory::announce(const Announced& object, HolderIndex holder) {
  Shard& part = shard(object.id);
  const std::lock_guard lock(part.mutex);
  HolderEntry* entry = part.table.find(object.id);
  const Added added = check_locked(part, object, entry);
  if (added != Added::kTaken) return {added, 0};
  const auto own = own_(object.id);
  if (own && *own != object.digest) return {Added::kConflict, 0};
  const bool again = forget_removal_locked(part, object);
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
  return {Added::kTaken, static_cast<std::uint32_t>(entry->count + (more == part.more.end() ? 0 : more->second.size())),
          again};
}

Directory::Said Directory::claim(const Announced& object, const std::function<void()>& commit) {
  Shard& part = shard(object.id);
  const std::lock_guard lock(part.mutex);
  const Added added = check_locked(part, object, part.table.find(object.id));
  if (added != Added::kTaken) return {added};
  const bool again = forget_removal_locked(part, object);
  commit();
  return {added, 0, again};
}

void Directory::put_again(std::span<const ObjectId> ids) {
  for (const ObjectId& id : ids) {
    Shard& part = shard(id);
    const std::lock_guard lock(part.mutex);
    if (!part.removed.contains(id) || !own_(id)) continue;
    part.removed.erase(id);
    note_change({id, Clock::now(), true});
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

bool Directory::is_removed(const ObjectId& id) const {
  const Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  return part.removed.contains(id);
}

void Directory::forget_oldest_locked(Shard& part) {
  const auto [when, id] = part.removals.front();
  part.removals.pop_front();
  const auto known = part.removed.find(id);
  if (known != part.removed.end() && known->second == when) part.removed.erase(known);  // else removed again later
}

std::vector<HolderIndex> Directory::take_out_locked(Shard& part, const ObjectId& id) {
  HolderEntry* const entry = part.table.find(id);
  if (entry == nullptr) return {};
  std::vector<HolderIndex> holders = location_of(part, *entry).holders;
  part.more.erase(id);
  part.table.erase(entry);
  return holders;
}

void Directory::note_removed_locked(Shard& part, const Removal& removal) {
  if (!removal.again) part.removed.insert_or_assign(removal.id, removal.when);
  const auto later =
      std::ranges::upper_bound(part.removals, removal.when, {}, [](const auto& one) { return one.first; });
  part.removals.emplace(later, removal.when, removal.id);
  if (part.removals.size() > kMaxTombstones) forget_oldest_locked(part);
  note_change(removal);
}

Directory::Removed Directory::remove(const ObjectId& id, Clock::time_point now) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  Removed out{take_out_locked(part, id), part.removed.contains(id)};
  part.put_alone.erase(id);
  note_removed_locked(part, {id, now, false});
  return out;
}

std::optional<std::vector<HolderIndex>> Directory::take_over(const Removal& removal,
                                                             const std::function<void()>& drop) {
  Shard& part = shard(removal.id);
  const std::lock_guard lock(part.mutex);
  const auto put = part.put_alone.find(removal.id);
  if (put && *put > removal.when) return std::nullopt;
  drop();
  const auto known = part.removed.find(removal.id);
  const bool news = known == part.removed.end() || known->second < removal.when;
  if (removal.again && news && known != part.removed.end()) part.removed.erase(known);
  if (news) note_removed_locked(part, removal);
  if (removal.again) return std::vector<HolderIndex>{};  // what others say may be of what was put
  return take_out_locked(part, removal.id);
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
           part.removals.size() * sizeof(part.removals.front()) + part.put_alone.memory_bytes();
  }
  return sum + kept_.memory_bytes();
}

std::vector<Removal> Directory::removed(const std::function<bool(const ObjectId&)>& kind) const {
  std::vector<Removal> out;
  for (const Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    for (const auto& [when, id] : part.removals) {
      if (kind(id)) out.push_back({id, when, !part.removed.contains(id)});
    }
  }
  return out;
}

void Directory::forget_removed(std::span<const Removal> removals) {
  std::map<ObjectId, Clock::time_point> gone;
  for (const Removal& one : removals) {
    auto& when = gone.try_emplace(one.id, one.when).first->second;
    when = std::max(when, one.when);
  }
  const auto is_gone = [&](const ObjectId& id, Clock::time_point when) {
    const auto found = gone.find(id);
    return found != gone.end() && when <= found->second;
  };
  for (Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    std::erase_if(part.removals, [&](const auto& one) { return is_gone(one.second, one.first); });
    std::erase_if(part.removed, [&](const auto& one) { return is_gone(one.first, one.second); });
  }
}

std::vector<Removal> Directory::take_changes() {
  const std::lock_guard lock(changes_mutex_);
  return std::exchange(changes_, {});
}

bool Directory::has_changes() const {
  const std::lock_guard lock(changes_mutex_);
  return !changes_.empty();
}

void Directory::expire_tombstones(Clock::time_point now) {
  const Clock::time_point oldest = now - kRememberRemoved;
  for (Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    while (!part.removals.empty() && part.removals.front().first <= oldest) forget_oldest_locked(part);
    part.put_alone.forget_before(oldest);
  }
  kept_.forget_before(oldest);
}

}  // namespace kvferry::store
