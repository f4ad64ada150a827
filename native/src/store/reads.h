// What is asked of a node about objects: their bytes, pins, and where they are. Thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "store/finder.h"
#include "store/hot_reads.h"

namespace kvferry::store {

// Objects pinned while an answer with their bytes is put together.
class InlineValues {
 public:
  explicit InlineValues(NodeCore& core, std::uint64_t budget) : core_(core), budget_(budget) {}
  ~InlineValues();
  InlineValues(const InlineValues&) = delete;
  InlineValues& operator=(const InlineValues&) = delete;

  // kNotFound; kResourceExhausted: it does not fit the answer (`held` is set nevertheless); as LocalStore::pin().
  Status get(const GetInline::Item& item, Deadline deadline, Held* held, ByteView* value);

 private:
  NodeCore& core_;
  std::uint64_t budget_;
  std::vector<PinId> pins_;
  std::vector<Bytes> copies_;  // of values in several places
};

class Reads {
 public:
  using Hot = std::function<void(const ObjectId&, const NodeId& reader)>;
  Reads(NodeCore& core, Finder& finder, Hot hot)
      : core_(core),
        finder_(finder),
        hot_(std::move(hot)),
        hot_reads_(core.options.hot_reads, core.options.hot_window) {}

  // `wait` false: nullopt if SSD or other members would have to be asked.
  std::optional<GetInline::Answer> get_inline(const SessionInfo& who, const GetInline& get, InlineValues& values,
                                              bool wait);
  std::optional<Pin::Answer> pin(const SessionInfo& who, const Pin& pin, bool wait);
  Unpin::Answer unpin(const SessionInfo& who, const Unpin& unpin);
  std::optional<Lookup::Answer> lookup(const SessionInfo& who, const Lookup& lookup, InlineValues& values, bool wait);
  std::optional<Exists::Answer> exists(const Exists& exists, bool wait);
  std::optional<Match::Answer> match(const Match& match, bool wait);
  Find::Answer find(const Find& find) const;

 private:
  bool is_on_ssd(const ObjectId& id) const;
  void count_read(const SessionInfo& who, const ObjectId& id);
  // What here() and, with `wait`, the other members say.
  std::optional<std::vector<std::optional<Found>>> look(const ClusterView& view, std::span<const ObjectId> ids,
                                                        bool wait);
  std::optional<std::vector<bool>> look_if_there(const ClusterView& view, std::span<const ObjectId> ids, bool wait);

  NodeCore& core_;
  Finder& finder_;
  const Hot hot_;
  HotReads hot_reads_;
};

}  // namespace kvferry::store
