#include "store/client/gets.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "store/client/pinned_read.h"
#include "store/runs.h"

namespace kvferry::store {
namespace {

// Values up to this size come inside of messages: to pin, read and let go would take three round trips.
constexpr std::uint64_t kInlineBytes = 32u << 10;
constexpr int kHomeTries = 3;

using Wanted = std::vector<Want*>;

Wanted open_ones(std::span<Want> wants) {
  Wanted open;
  for (Want& want : wants) {
    if (!want.done) open.push_back(&want);
  }
  return open;
}

// In place, without a message. Leaves those open that are not in this node's memory.
void from_memory(ClientCore& core, const Home& home, std::span<Want> wants) {
  LocalReader& reader = *home.reader();
  std::uint64_t total = 0;
  for (const Want& want : wants) total += want.done ? 0 : want.room();
  const Stores stores = stores_for(total);
  for (Want& want : wants) {
    if (want.done) continue;
    auto pin = reader.pin(want.id);
    if (!pin.ok() || !pin->has_value()) continue;
    const LocalPin& held = **pin;
    const auto runs = home.memory(held.places);
    const std::vector<std::span<const std::byte>> bytes(runs.begin(), runs.end());
    deliver(want, bytes, held.held, stores);
    reader.unpin(held);
    core.counters.memory_hits.fetch_add(want.done ? 1 : 0, std::memory_order_relaxed);
  }
}

// From the node's SSD, or when this client has no pin left: the node pins it for us.
void from_home(ClientCore& core, const Home& home, const Wanted& open, Deadline deadline) {
  Wanted here;
  for (Want* want : open) {
    if (home.reader()->find(want->id)) here.push_back(want);
  }
  for (int attempt = 0; attempt < kHomeTries && !here.empty(); ++attempt) {
    const Status failure = read_pinned(core, home.connection(), &home, here, deadline);
    core.counters.ssd_hits.fetch_add(std::erase_if(here, [](const Want* want) { return want->done; }),
                                     std::memory_order_relaxed);
    if (failure.ok() || node_failed(failure.code())) continue;
    for (Want* want : here) want->trouble = failure;
  }
}

// Small values that came with the answer of `where`.
bool take_value(Want& want, ByteView value, const ContentDigest& digest) {
  const std::span<const std::byte> run = value;
  deliver(want, {&run, 1}, {value.size(), digest, Tier::kDram, 1}, Stores::kCached);
  return want.done;
}

class FromOthers {
 public:
  FromOthers(ClientCore& core, const Home* home, Wanted open, Deadline deadline)
      : core_(core), home_(home), open_(std::move(open)), deadline_(deadline) {}

  Status run() {
    KVF_RETURN_IF_ERROR(core_.usable());
    if (!know_where()) KVF_RETURN_IF_ERROR(ask_where());
    while (!ways_.empty() && Clock::now() < deadline_) try_next_holders();
    for (const Way& way : ways_) last_failure(way);
    return {};
  }

 private:
  struct Way {
    Want* want;
    Found found;
    std::size_t next = 0;  // holder to try
    Status failure;
    bool sure = true;  // that somebody has it
  };

  // True: there is one node, which has them all or nobody does, and they are not so small as to come with the answer.
  bool know_where() {
    const auto members = core_.links->members();
    if (members->all.size() != 1) return false;
    if (!std::ranges::all_of(open_, [](const Want* want) { return want->room() > kInlineBytes; })) return false;
    for (Want* want : open_) ways_.push_back({want, {true, 0, {}, {members->all[0].node_id}}, 0, {}, false});
    return true;
  }

  Status ask_where() {
    std::vector<ObjectId> ids;
    for (const Want* want : open_) ids.push_back(want->id);
    auto found = where(core_, ids, deadline_, static_cast<std::uint32_t>(kInlineBytes),
                       [this](std::size_t index, ByteView value, const ContentDigest& digest) {
                         return take_value(*open_[index], value, digest);
                       });
    if (!found.ok()) return found.status();
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i]->done) {
        core_.counters.remote_hits.fetch_add(1, std::memory_order_relaxed);
      } else if ((*found)[i].found) {
        ways_.push_back({open_[i], std::move((*found)[i]), 0, {}});
      }
    }
    return {};
  }

  void try_next_holders() {
    std::map<NodeId, std::vector<Way*>> groups;
    for (Way& way : ways_) {
      if (way.next < way.found.holders.size()) groups[way.found.holders[way.next++]].push_back(&way);
    }
    if (groups.empty()) {
      for (const Way& way : ways_) last_failure(way);
      ways_.clear();
      return;
    }
    for (auto& [node, ways] : groups) read_from(node, ways);
    std::erase_if(ways_, [this](const Way& way) {
      if (way.want->done) core_.counters.remote_hits.fetch_add(1, std::memory_order_relaxed);
      return way.want->done;
    });
  }

  void read_from(const NodeId& node, const std::vector<Way*>& ways) {
    const auto connection = core_.links->to(node, deadline_);
    Status failure = connection.status();
    if (connection.ok()) {
      Wanted wants;
      for (const Way* way : ways) wants.push_back(way->want);
      const bool at_home = home_ != nullptr && home_->node() == node && home_->reader() != nullptr;
      failure = read_pinned(core_, *connection, at_home ? home_ : nullptr, wants, deadline_);
    }
    if (failure.ok()) return;
    for (Way* way : ways) way->failure = failure;
    if (node_failed(failure.code()) && Clock::now() < deadline_) {
      core_.links->suspect(node);
      core_.counters.failovers.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Gone from wherever it was said to be is absent; so is what only a node has that does not answer.
  static void last_failure(const Way& way) {
    way.want->late = way.failure;
    if (way.want->done || way.failure.ok() || (way.sure && node_failed(way.failure.code()))) return;
    way.want->trouble = way.failure;
  }

  ClientCore& core_;
  const Home* home_;
  const Wanted open_;
  const Deadline deadline_;
  std::deque<Way> ways_;
};

Status too_late(const Want& want, Clock::time_point begun) {
  const Status status(Code::kDeadlineExceeded, "the object could not be read in the " + seconds_since(begun) +
                                                   " allowed; allow more time, or see `kvferry status`");
  return want.late.ok() ? status : Status(status.code(), status.message() + ". Last: " + want.late.to_string());
}

void finish_open(ClientCore& core, std::span<Want> wants, const Status& failure, Clock::time_point begun,
                 Deadline deadline) {
  for (Want& want : wants) {
    if (want.done) continue;
    if (!failure.ok()) {
      want.finish(failure, 0);
    } else if (!want.trouble.ok()) {
      want.finish(want.trouble, 0);
    } else if (Clock::now() >= deadline) {
      want.finish(too_late(want, begun), 0);
    } else {
      want.finish({Code::kNotFound, "there is no such object"}, 0);
      core.counters.misses.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

}  // namespace

std::uint64_t Want::room() const { return total_bytes(target); }

void Want::finish(Status status, std::uint64_t bytes) {
  result = {std::move(status), bytes};
  done = true;
}

void get(ClientCore& core, std::span<Want> wants, Deadline deadline) {
  const auto begun = Clock::now();
  const auto home = core.home(deadline);
  const Home* here = home.ok() && (*home)->reader() != nullptr ? home->get() : nullptr;
  const bool alone = here != nullptr && here->reader()->knows_all() && core.links->members()->all.size() <= 1;
  Status failure;
  if (here != nullptr) {
    const bool waiting = here->reader()->puts_waiting();
    from_memory(core, *here, wants);
    if (waiting && !open_ones(wants).empty()) {
      failure = here->catch_up(core, deadline);
      from_memory(core, *here, wants);
    }
    from_home(core, *here, open_ones(wants), deadline);
  }
  const Wanted open = open_ones(wants);
  if (!open.empty() && !alone) failure = FromOthers(core, here, open, deadline).run();
  if (!home.ok() && core.links->members()->all.empty()) failure = home.status();
  finish_open(core, wants, failure, begun, deadline);
  std::uint64_t bytes = 0;
  for (const Want& want : wants) bytes += want.result.status.ok() ? want.result.bytes : 0;
  core.counters.get_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace kvferry::store
