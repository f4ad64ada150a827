// The registered memory of one engine. Thread-safe.
//
// A pin keeps the memory in use: remove() first hides the region from new pins, then waits for those held. An id is
// used again only after its region is gone, with a higher generation, so an old key never reaches new memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/driver.h"
#include "kvferry/status.h"
#include "kvferry/types.h"
#include "memory/region_directory.h"
#include "memory/registration_rate.h"

namespace kvferry {

struct RegionSource {  // what to register
  void* data = nullptr;
  std::uint64_t length = 0;
  std::string name;
  std::uint8_t access = kRemoteRead;
  MemoryKind kind = MemoryKind::kHost;
  std::uint32_t arena_index = 0;  // 0: not in an arena
  std::uint64_t arena_offset = 0;
};

class RegionTable {
  struct Region;

 public:
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept = default;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { release(); }

    std::byte* data() const;  // start of the region
    std::uint64_t length() const;
    RegionKey key() const;
    MemoryPlace place() const;
    int numa_node() const;  // as found when it was registered; -1: several, or unknown
    // Address of a range of the region; kOutOfRange if it leaves it.
    Result<std::byte*> at(std::uint64_t offset, std::uint64_t length) const;
    bool covers(const std::byte* begin, std::uint64_t length) const;  // memory that lies wholly in the region
    bool held() const { return region_ != nullptr; }
    void release();

   private:
    friend class RegionTable;
    explicit Pin(std::shared_ptr<Region> region) : region_(std::move(region)) {}
    std::shared_ptr<Region> region_;
  };

  // `directory` may be null (no same-host peers); else it outlives the table.
  RegionTable(RegionDirectoryWriter* directory, bool advise_huge_pages);
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // A file (kFile) has no memory: `data` is null, and peers never learn of it.
  // kInvalidArgument (null, empty, unmapped, wrapped range, name too long, access bits), kUnsupported (kind that this
  // build cannot reach, by name), kResourceExhausted (kMaxRegions).
  //
  // Memory that is registered already (address, length, kind, access and name the same; not files and arenas) is the
  // same region once more, without a second look at it; it goes with as many remove() as there were add().
  Result<RegionInfo> add(RegionSource source);

  // By the exact key, for whatever a peer names: kNotFound, kStale.
  Result<Pin> pin(RegionKey key) const;
  // pin() plus access and range checks for a request of a peer: kPermissionDenied, kOutOfRange. `op` as the peer sees
  // it.
  Result<Pin> pin_for_peer(RegionKey key, std::uint64_t offset, std::uint64_t length, Op op) const;
  // A region of host memory that holds the range; the pin is not held if there is none.
  Pin pin_covering(const std::byte* begin, std::uint64_t length) const;
  // Where the memory of a region that holds the range lies, hidden ones included; the host's if there is none.
  MemoryPlace place_of(const std::byte* begin, std::uint64_t length) const;
  // By id, whichever generation lives there now, for our own user's pieces.
  Result<RegionInfo> find(std::uint32_t id) const;
  std::vector<RegionInfo> list() const;  // by id
  // Whether any region lies on an accelerator: if not, no plan needs to ask.
  bool has_device_memory() const { return device_regions_.load(std::memory_order_relaxed) > 0; }

  // Called by add() for host memory: the NUMA node that it lies on. Set once, before use; without it none is known.
  void set_node_of(std::function<std::optional<int>(const void* data, std::uint64_t length)> node_of);
  // Called by remove() after the region was hidden, to wait for peers that copy without asking. Set once, before use.
  void set_quiesce(std::function<Status(Deadline)> quiesce);
  // Takes one add() back. The last one hides the region, then waits. kDeadlineExceeded: still in use; it stays hidden,
  // and remove() may be called again.
  Status remove(RegionKey key, Deadline deadline);
  void hide_all();  // for the engine's end: no new pins, whoever registered; those held stay

 private:
  struct Slot {
    std::uint32_t generation = 0;
    std::shared_ptr<Region> region;  // null: free
  };
  Result<std::shared_ptr<Region>> lookup(RegionKey key, bool hidden_too) const;  // mutex_ held
  Result<std::uint32_t> free_slot();                                             // mutex_ held
  std::optional<RegionInfo> add_to_twin(const RegionSource& source);             // mutex_ held
  void note_registration(const RegionSource& source);

  RegionDirectoryWriter* const directory_;
  const bool advise_huge_pages_;
  std::atomic<std::uint32_t> device_regions_{0};
  mutable std::mutex mutex_;  // guards slots_, rate_ and the directory
  std::vector<Slot> slots_;   // index = id - 1
  RegistrationRate rate_;
  std::function<std::optional<int>(const void*, std::uint64_t)> node_of_;
  std::function<Status(Deadline)> quiesce_;
};

}  // namespace kvferry
