// The objects of one node: what holds table, memory, puts and upkeep together, under one lock that is never held while
// waiting, calling out or moving bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/local_store.h"
#include "store/object_memory.h"
#include "store/object_table.h"
#include "store/quick_puts.h"
#include "store/reservations.h"
#include "store/ssd_tier.h"
#include "store/store_counters.h"

namespace kvferry::store {

class LocalStoreImpl final : public LocalStore {
 public:
  LocalStoreImpl(LocalStoreOptions options, std::unique_ptr<ObjectTable> table);
  ~LocalStoreImpl() override;
  Status start(std::shared_ptr<log::Disk> disk);

  Result<Reserved> reserve(Session session, const NewObject& object, Deadline deadline) override;
  Result<bool> commit(Session session, PutId put, const ContentDigest& digest) override;
  void abort(Session session, PutId put) override;
  std::optional<Held> find(const ObjectId& id) const override;
  Result<Pinned> pin(Session session, const ObjectId& id, Deadline deadline) override;
  bool unpin(Session session, PinId pin) override;
  bool remove(const ObjectId& id) override;
  bool hold_puts_back(const ObjectId& id) override;
  void release_puts(const ObjectId& id) override;
  void contest_puts() override;
  void end_session(Session session, std::function<bool()> still_writes) override;
  Result<std::uint32_t> add_client(std::function<bool()> gone) override;
  bool fence_client(std::uint32_t page, Session session) override { return memory_.pages().fence(page, session); }
  void remove_client(std::uint32_t page) override;
  void allow_quick_puts(bool allow) override;
  bool quick_puts_waiting() const override;
  QuickPutsDone settle_quick_puts() override;
  void offer_quick_puts(std::uint32_t page, std::uint64_t bytes) override;
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
  static constexpr std::size_t kMovers = 2;  // one puts a batch together while the other one's is being written

  using Lock = std::unique_lock<std::mutex>;
  using DroppedCallback = std::function<void(std::span<const ObjectId>)>;
  using DemoteCallback = std::function<bool(const ObjectId&)>;

  // local_store_impl.cc, under the lock.
  std::optional<Slot> find_current(const ObjectId& id);
  Retired take_out(Slot slot);     // of table and log
  Retired give_up(Slot slot);      // the object leaves by itself: peers must learn of it
  void release(Reservation& put);  // memory and slot
  Result<bool> settle_duplicate(Reservation& put, Slot slot, const ContentDigest& digest);
  Pinned pin_in_memory(Session session, Slot slot);

  // room.cc, under the lock, which they may let go of for a while.
  enum class Purpose { kPut, kLoad };
  Result<std::vector<Place>> make_room(Lock& lock, std::uint64_t bytes, Deadline deadline, Purpose purpose);
  std::optional<std::vector<Place>> take_room(std::uint64_t bytes, Purpose purpose);
  Result<Slot> make_slot(Lock& lock, Deadline deadline);
  Status no_slot(Deadline deadline);
  std::uint64_t pinned_bytes() const;
  bool could_fit(std::uint64_t bytes) const;
  bool more_may_leave() const;
  std::uint64_t evict(std::uint64_t bytes, std::size_t most_objects);
  Retired leave_memory(Slot slot);
  Slot next_victim();
  bool forget_expired();
  void retire(std::vector<Retired> batch);
  void drain_accesses();
  Status no_room(std::uint64_t bytes) const;
  Status no_room_yet(std::uint64_t bytes) const;
  Status check_size(std::uint64_t bytes) const;
  // Offers are as good as free: they can be taken back at once.
  std::uint64_t used_bytes() const {
    return memory_.arenas().capacity() - memory_.arenas().free_bytes() - quick_.bytes();
  }
  bool above_high_water() const { return used_bytes() > high_water_; }
  void call_for_upkeep(bool needed);

  // tiering.cc: out of memory, to SSD or another node. By the threads of that name, but for what puts and removals
  // call.
  enum class Waited { kChanged, kStuck, kLate };
  bool nothing_moves();
  Waited wait_for_tiering(Lock& lock, std::uint64_t missing, Deadline until, std::uint64_t of_load);
  bool wait_for_log(Lock& lock, Deadline until);
  void call_for_tiering();
  void room_changed();
  void tiering();
  bool tiers() const { return ssd_ != nullptr || options_.demote_to_remote; }
  struct Departure {
    Slot slot = kNoSlot;
    std::uint64_t pin_word = 0;
    ObjectId id;
    std::uint64_t leaving = 0;  // bytes of memory
    SsdTier::Write write;
    bool to_log = false;
    bool taken = false;  // by another node
    std::optional<Result<LogPlace>> place;
  };
  std::uint64_t batch_bytes() const;
  std::uint64_t surplus();
  bool move_some(Lock& lock);
  std::size_t let_go(Lock& lock);
  std::size_t choose(bool demote, std::vector<Departure>* batch);
  std::size_t write_through(Lock& lock);
  void take_along(Slot slot, bool to_log, std::vector<Departure>* batch);
  Departure departure_of(Slot slot) const;
  void move_out(Lock& lock, std::vector<Departure>& batch, bool demote);
  void settle(std::vector<Departure>& batch, bool leave);
  bool note_place(const Departure& departure);
  void make_room_on_ssd(Lock& lock);
  void await_write(const ObjectId& id);
  void erase_now(Lock& lock, const ObjectId& id);
  void erase_from_log(Lock& lock);
  void adapt_batch(Clock::duration took);

  // bring_back.cc: from SSD into memory.
  Status bring_back(Lock& lock, const ObjectId& id, Slot slot, Deadline deadline);
  Status load(Lock& lock, const ObjectId& id, Slot slot, Deadline deadline);
  void prefetching();
  bool recover(const SsdObject& found, const LogPlace& place);
  bool moved(const ObjectId& id, const LogPlace& from, const LogPlace& to);

  // upkeep.cc, by the thread of that name.
  void upkeep();
  void look_after_leases();
  void evict_to_low_water(Lock& lock);
  void look_after_clients(Lock& lock);
  void look_after_ended_sessions(Lock& lock);
  void report_dropped(Lock& lock);

  // quick_settling.cc, under the lock.
  class QuickDoor;  // what clients put without a message is in the index, and no more of it comes, while one lives
  void settle_quick();
  void take_in(QuickPuts::Put& put);
  void offer_memory();
  bool may_offer(std::uint64_t room) const;
  bool offer_one(const QuickPuts::Want& want);
  bool free_offers(std::vector<QuickPuts::Offer> offers);  // true: there were any
  void end_client(std::uint32_t page);

  // listing.cc.
  void for_each_record(std::uint64_t now_ms, const std::function<void(Slot, const ObjectRecord&)>& visit) const;

  const NodeOptions options_;
  const std::vector<std::span<std::byte>> arenas_;
  StoreCounters counters_;        // thread-safe by itself
  std::unique_ptr<SsdTier> ssd_;  // set by start(); null: none. Never called under the lock, but for what is quick
  mutable std::mutex mutex_;
  std::condition_variable upkeep_wanted_, tiering_wanted_, prefetch_wanted_;
  std::condition_variable room_made_, loaded_;
  const std::unique_ptr<ObjectTable> table_;  // guarded by mutex_, as all that follows
  ObjectMemory memory_;
  Reservations puts_;
  QuickPuts quick_;
  QuickPutsDone quick_done_;
  std::atomic<bool> quick_unreported_{false};  // quick_done_ has something; without the lock, too
  std::uint64_t high_water_;
  std::uint64_t low_water_;
  bool upkeep_called_ = false;
  bool closed_ = false;
  std::vector<ObjectId> dropped_;
  std::shared_ptr<const DroppedCallback> on_dropped_;
  std::shared_ptr<const DemoteCallback> on_demote_;

  bool tiering_called_ = false;
  std::uint64_t wanted_bytes_ = 0;              // that puts and loads wait for
  std::uint64_t loads_want_ = 0;                // that loads wait for, which go before puts
  std::uint64_t leaving_bytes_ = 0;             // memory of objects that are on their way out
  Clock::time_point pressed_until_{};           // somebody waits for room, or did just before
  bool evicting_ = false;                       // from the high watermark down to the low one
  std::uint64_t most_batch_bytes_ = 16u << 20;  // less while the disk takes long for one
  std::uint64_t room_changes_ = 0;              // grows whenever there may be room, or more that can go
  std::uint64_t loading_bytes_ = 0;             // memory for objects that are being read in
  std::uint64_t slotless_bytes_ = 0;            // memory of puts that wait for a slot
  int full_rounds_ = 0;                         // in which the log took nothing for want of room
  std::unordered_map<ObjectId, std::optional<LogPlace>> appending_;  // and where the log moved them meanwhile
  std::unordered_set<ObjectId> loading_;
  std::atomic<Clock::time_point> asking_since_{Clock::time_point::max()};  // another node whether it takes an object
  std::deque<ObjectId> unwritten_;                                         // of kWriteThrough
  std::deque<ObjectId> prefetches_;
  std::vector<LogErase> log_erases_;

  std::thread upkeep_, prefetching_;
  std::vector<std::thread> tiering_;
};

}  // namespace kvferry::store
