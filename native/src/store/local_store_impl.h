// The objects of one node: what holds table, memory, puts and upkeep together, under one lock that is never held while
// waiting, calling out or moving bytes.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "store/local_store.h"
#include "store/object_memory.h"
#include "store/object_table.h"
#include "store/reservations.h"
#include "store/store_counters.h"

namespace kvferry::store {

class LocalStoreImpl final : public LocalStore {
 public:
  LocalStoreImpl(LocalStoreOptions options, std::unique_ptr<ObjectTable> table);
  ~LocalStoreImpl() override;
  void start();

  Result<Reserved> reserve(Session session, const NewObject& object, Deadline deadline) override;
  Result<bool> commit(Session session, PutId put, const ContentDigest& digest) override;
  void abort(Session session, PutId put) override;
  std::optional<Held> find(const ObjectId& id) const override;
  Result<Pinned> pin(Session session, const ObjectId& id, Deadline deadline) override;
  bool unpin(Session session, PinId pin) override;
  bool remove(const ObjectId& id) override;
  void end_session(Session session, std::function<bool()> still_writes) override;
  Result<std::uint32_t> add_client(std::function<bool()> gone) override;
  void remove_client(std::uint32_t page) override;
  void for_each(const std::function<bool(const ObjectId&, const Held&)>& visit) const override;
  std::vector<ObjectInfo> list(std::string_view tenant, std::string_view prefix, std::string_view after,
                               std::uint32_t limit) const override;
  std::vector<ObjectId> with_tag(std::string_view tenant, std::string_view tag) const override;
  std::optional<NewObject> describe(const ObjectId& id) const override;
  void prefetch(std::span<const ObjectId> ids) override;
  void on_dropped(std::function<void(std::span<const ObjectId>)> callback) override;
  void on_demote(std::function<bool(const ObjectId&)> callback) override;
  NodeStats stats() const override;
  Status check() const override;
  void close() override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using DroppedCallback = std::function<void(std::span<const ObjectId>)>;

  // local_store_impl.cc, under the lock.
  std::optional<Slot> find_current(const ObjectId& id);
  void forget(Slot slot);          // the object left by itself: peers must learn of it
  void release(Reservation& put);  // memory and slot
  Result<bool> settle_duplicate(Reservation& put, Slot slot, const ContentDigest& digest);

  // room.cc, under the lock.
  struct Room {
    Slot slot = kNoSlot;
    std::vector<Place> places;
  };
  Result<Room> make_room(std::uint64_t bytes);
  Result<Slot> make_slot();
  bool could_fit(std::uint64_t bytes) const;
  std::uint64_t evict(std::uint64_t bytes, std::size_t most_objects, StoreCounters::Id why);
  bool forget_expired();
  void retire(std::vector<Retired> batch);
  void drain_accesses();
  Status no_room(std::uint64_t bytes) const;
  std::uint64_t used_bytes() const { return memory_.arenas().capacity() - memory_.arenas().free_bytes(); }
  bool above_high_water() const { return used_bytes() > high_water_; }
  void call_for_upkeep(bool needed);

  // upkeep.cc, by the thread of that name.
  void upkeep();
  void look_after_leases();
  void evict_to_low_water(Lock& lock);
  void look_after_clients(Lock& lock);
  void look_after_ended_sessions(Lock& lock);
  void report_dropped(Lock& lock);

  // listing.cc.
  void for_each_record(std::uint64_t now_ms, const std::function<void(Slot, const ObjectRecord&)>& visit) const;

  const NodeOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable upkeep_wanted_;
  const std::unique_ptr<ObjectTable> table_;  // guarded by mutex_, as all that follows
  ObjectMemory memory_;
  Reservations puts_;
  std::uint64_t high_water_;
  std::uint64_t low_water_;
  bool upkeep_called_ = false;
  bool closed_ = false;
  std::vector<ObjectId> dropped_;
  std::shared_ptr<const DroppedCallback> on_dropped_;
  StoreCounters counters_;  // thread-safe by itself
  std::thread upkeep_;
};

}  // namespace kvferry::store
