#include "store/object_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::store {

ObjectTable::ObjectTable(SharedIndex index, IndexReader reader, const NodeOptions& options)
    : index_(std::move(index)),
      reader_(reader),
      dram_policy_(make_policy(options.policy, options.dram_bytes, view())),
      ssd_policy_(make_policy(options.ssd_policy, options.ssd_bytes, view())) {}

ObjectsView ObjectTable::view() const {
  return {[this](Slot slot) { return index_.id(slot); }, [this](const ObjectId& id) { return find(id); }};
}

Result<std::unique_ptr<ObjectTable>> ObjectTable::create(std::span<std::byte> index, const NodeId& node,
                                                         const NodeOptions& options) {
  const IndexShape shape = IndexShape::of(options);
  if (index.size() < shape.bytes()) {
    return {Code::kInvalidArgument,
            "the index needs " + std::to_string(shape.bytes()) + " bytes, not " + std::to_string(index.size())};
  }
  SharedIndex writer(index, shape, node);
  KVF_ASSIGN_OR_RETURN(const IndexReader reader, IndexReader::attach(index, node));
  return std::unique_ptr<ObjectTable>(new ObjectTable(std::move(writer), reader, options));
}

std::optional<Slot> ObjectTable::find(const ObjectId& id) const {
  const auto found = reader_.find(id, 0);
  if (!found) return std::nullopt;
  return found->slot;
}

bool ObjectTable::holds(std::uint64_t pin_word) const {
  const auto slot = static_cast<Slot>((pin_word >> 32) - 1);
  return slot < index_.high_water() && index_.held(slot) && pin_word_of(slot) == pin_word;
}

NewObject ObjectTable::describe(Slot slot, std::uint64_t now_ms) const {
  const SharedIndex::Entry entry = index_.entry(slot);
  const ObjectRecord record = records_.at(slot);
  NewObject object;
  object.id = entry.id;
  object.key = record.key;
  object.tenant = record.tenant;
  object.bytes = entry.held.bytes;
  object.replicas = entry.held.replicas;
  if (entry.expires_ms != kNeverExpires) {
    object.expires_in = milliseconds(entry.expires_ms > now_ms ? entry.expires_ms - now_ms : 0);
  }
  object.tags = record.tags();
  object.parent = record.parent;
  object.depth = record.depth;
  object.extra = record.extra;
  return object;
}

void ObjectTable::count(const Held& held, bool more) {
  const std::uint64_t one = more ? 1 : UINT64_MAX;  // wraps to minus one
  (held.tier == Tier::kDram ? dram_objects_ : ssd_objects_) += one;
  if (held.tier == Tier::kDram) dram_bytes_ += one * ArenaSet::rounded(held.bytes);
}

void ObjectTable::insert(Slot slot, const NewObject& object, const Placed& placed) {
  records_.put(slot, object);
  SharedIndex::Entry entry;
  entry.id = object.id;
  entry.held = {object.bytes, placed.digest, placed.tier, object.replicas};
  entry.expires_ms = placed.expires_ms;
  if (placed.tier == Tier::kDram) dram_policy_->insert(slot, {object.id, object.bytes, object.parent, object.depth});
  if (entry.expires_ms != kNeverExpires) {
    expiry_.add(slot, entry.expires_ms,
                [this](Slot at, std::uint64_t time) { return index_.held(at) && index_.expires_ms(at) == time; });
  }
  if (object.extra) {
    if (extras_.size() > 2 * objects() + 64) std::erase_if(extras_, [this](Slot at) { return !is_extra(at); });
    extras_.push_back(slot);
  }
  count(entry.held, true);
  index_.put(slot, entry, placed.places);
}

Retired ObjectTable::retired(Slot slot) const {
  return {pin_word_of(slot), index_.places(slot), index_.entry(slot).held.bytes};
}

Retired ObjectTable::erase(Slot slot) {
  Retired memory = retired(slot);
  const Held held = index_.entry(slot).held;
  if (held.tier == Tier::kDram) dram_policy_->erase(slot);  // the policies ask for its id
  if (in_log(slot)) clear_log_place(slot);
  index_.erase(slot);
  count(held, false);
  records_.erase(slot);
  index_.give_slot(slot);
  return memory;
}

ObjectFacts ObjectTable::facts(Slot slot) const {
  const ObjectRecord record = records_.at(slot);
  return {index_.id(slot), index_.entry(slot).held.bytes, record.parent, record.depth};
}

std::optional<LogPlace> ObjectTable::log_place(Slot slot) const {
  if (!in_log(slot)) return std::nullopt;
  return LogPlace{log_slots_[slot].segment, log_slots_[slot].record, index_.entry(slot).held.bytes};
}

void ObjectTable::set_log_place(Slot slot, const LogPlace& place) {
  if (!in_log(slot)) {
    if (slot >= log_slots_.size()) log_slots_.resize(slot + 1);
    ssd_policy_->insert(slot, facts(slot));
    ++logged_;
  }
  log_slots_[slot] = {place.segment, place.record};
}

void ObjectTable::clear_log_place(Slot slot) {
  log_slots_[slot] = {};
  ssd_policy_->erase(slot);
  --logged_;
}

Retired ObjectTable::move_to_ssd(Slot slot) {
  Retired memory = retired(slot);
  Held held = index_.entry(slot).held;
  count(held, false);
  dram_policy_->erase(slot);
  index_.move_to_ssd(slot);
  held.tier = Tier::kSsd;
  count(held, true);
  return memory;
}

void ObjectTable::move_to_memory(Slot slot, std::span<const Place> places) {
  Held held = index_.entry(slot).held;
  count(held, false);
  index_.move_to_memory(slot, places);
  dram_policy_->insert(slot, facts(slot));
  held.tier = Tier::kDram;
  count(held, true);
  if (records_.extra(slot)) extras_.push_back(slot);
}

void ObjectTable::accessed(Slot slot) {
  if (index_.entry(slot).held.tier == Tier::kDram) dram_policy_->access(slot);
  if (in_log(slot)) ssd_policy_->access(slot);
}

void ObjectTable::maybe_accessed(Slot slot) {
  if (slot < index_.high_water() && index_.held(slot)) accessed(slot);
}

std::vector<Slot> ObjectTable::take_expired(std::uint64_t now_ms) {
  std::vector<Slot> due;
  expiry_.take_due(
      now_ms, [this](Slot at, std::uint64_t time) { return index_.held(at) && index_.expires_ms(at) == time; },
      [&](Slot slot) { due.push_back(slot); });
  // A slot that held two objects with one time stands in the queue twice.
  std::sort(due.begin(), due.end());
  due.erase(std::unique(due.begin(), due.end()), due.end());
  return due;
}

bool ObjectTable::is_extra(Slot slot) const {
  return records_.has(slot) && records_.extra(slot) && index_.entry(slot).held.tier == Tier::kDram;
}

Slot ObjectTable::extra_victim(const EvictionPolicy::MayTake& may_take) {
  for (std::size_t looks = extras_.size(); looks > 0; --looks) {
    const Slot slot = extras_.front();
    extras_.pop_front();
    if (!is_extra(slot)) continue;
    extras_.push_back(slot);  // stays until it is erased
    if (may_take(slot)) return slot;
  }
  return kNoSlot;
}

Slot ObjectTable::victim(const EvictionPolicy::MayTake& may_take) {
  const Slot extra = extra_victim(may_take);
  return extra != kNoSlot ? extra : first_victim(*dram_policy_, dram_objects_, may_take);
}

Slot ObjectTable::first_victim(EvictionPolicy& policy, std::uint64_t objects, const EvictionPolicy::MayTake& may_take) {
  // A call looks at some of the objects only, and the next one goes on from there.
  const std::uint64_t calls = objects / EvictionPolicy::kMaxLooks + 2;
  for (std::uint64_t call = 0; call < calls; ++call) {
    const Slot slot = policy.victim(may_take);
    if (slot != kNoSlot) return slot;
  }
  return kNoSlot;
}

std::uint64_t ObjectTable::memory_bytes() const {
  return index_.bytes() + index_.private_bytes() + records_.memory_bytes() + expiry_.memory_bytes() +
         dram_policy_->memory_bytes() + ssd_policy_->memory_bytes() + extras_.size() * sizeof(Slot) +
         log_slots_.size() * sizeof(LogSlot);
}

Status ObjectTable::check() const {
  std::uint64_t dram = 0, ssd = 0, bytes = 0;
  for (Slot slot = 0; slot < index_.high_water(); ++slot) {
    if (index_.held(slot) != records_.has(slot)) {
      return {Code::kInternal, "slot " + std::to_string(slot) + ": index and records differ"};
    }
    if (!index_.held(slot)) continue;
    const Held held = index_.entry(slot).held;
    ++(held.tier == Tier::kDram ? dram : ssd);
    if (held.tier == Tier::kSsd && !in_log(slot)) {
      return {Code::kInternal, "object " + index_.id(slot).to_string() + " is neither in memory nor in the log"};
    }
    if (held.tier == Tier::kDram) bytes += ArenaSet::rounded(held.bytes);
    if (find(index_.id(slot)) != slot) {
      return {Code::kInternal, "object " + index_.id(slot).to_string() + " is in a slot and not found"};
    }
  }
  if (dram == dram_objects_ && ssd == ssd_objects_ && bytes == dram_bytes_) return {};
  return {Code::kInternal, "counted " + std::to_string(dram) + " and " + std::to_string(ssd) + " objects, " +
                               std::to_string(bytes) + " bytes; expected " + std::to_string(dram_objects_) + ", " +
                               std::to_string(ssd_objects_) + ", " + std::to_string(dram_bytes_)};
}

}  // namespace kvferry::store
